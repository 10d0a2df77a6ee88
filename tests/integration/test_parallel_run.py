"""Scripts that call parallel_run: replicas, another cluster, no synchronisation, the partition search, a fed rate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from parallax_runner.search.trial import WARM_UP_STEPS
from tests.integration.scripted import STEPS, expect, run, told


def test_ps_with_replicas_goes_on_from_ckpt_dir_in_another_cluster(tmp_path: Path) -> None:
    """First two workers with two replicas each, whose rows are in two pieces; then one worker."""
    config = {"run_option": "PS", "average_sparse": True, "ckpt": {"ckpt_dir": str(tmp_path / "ckpt")}}
    first = run(
        tmp_path,
        steps=1,
        run_dir="first",
        partitioner=2,
        scope="/cpu:9",
        resources=None,
        overrides=["cluster.replicas_per_worker=2", "cluster.servers=2"],
        config={**config, "ps": {"local_aggregation": False}},
    )
    assert first.status == 0, first.stderr
    assert told(first, 1, "worker") == ["1 of 2, 2 replica(s), 4 devices"]
    assert OmegaConf.load(tmp_path / "first" / "config.yaml").comm.ps.local_aggregation is False
    (moved,) = json.loads((tmp_path / "first" / "plan.json").read_text())["moved"]
    assert moved["device"] == "/device:CPU:9" and moved["to"].endswith("to 1, one for each replica")
    (tmp_path / "hosts").write_text("# one host\nlocalhost: 0,1\n")
    # With a comma at the end of the line, as in the original's own example.
    rest = run(tmp_path, as_module=True, steps=STEPS - 1, resources="hosts", config={**config, "run_option": ("PS",)})
    expect(rest, average_sparse=True, folder=tmp_path / "ckpt")
    assert told(rest, 0, "worker") == ["0 of 1, 2 replica(s), 3 devices"]
    assert OmegaConf.load(rest.run_dir / "config.yaml").comm.ps.local_aggregation is True


def test_without_waiting_for_each_other(tmp_path: Path) -> None:
    done = run(tmp_path, resources=None, sync=False, config={"run_option": "PS", "ckpt": {"save_ckpt_steps": 1}})
    assert done.status == 0, done.stderr
    # Each push counts, and all of them are in the last checkpoint.
    assert done.checkpoint()["global_step"] == 2 * STEPS
    assert json.loads((done.run_dir / "summary.json").read_text())["staleness_max"] is not None


def test_the_search_for_a_number_of_partitions(tmp_path: Path) -> None:
    """The trials are steps of the script's training."""
    config = {"run_option": "PS", "search_partitions": True}
    overrides = ["partition.max=2", "partition.steps_per_trial=2"]
    steps = 2 * (WARM_UP_STEPS + 2) + 3
    done = run(tmp_path, steps=steps, partitioner=1, config=config, overrides=overrides, hook=steps + 1)
    expect(done, steps=steps)
    summary = json.loads((done.run_dir / "summary.json").read_text())
    assert summary["partition_candidates"] == [1, 2]
    (table,) = [v for v in done.plan["variables"] if v["name"].startswith("embedding/table")]
    assert len(table["shards"]) == summary["partition_choice"]
    assert len(told(done, 0, "values")) == 1
    assert len(told(done, 0, "hook")) == steps + 3  # of "start", each step, the values, and the end


def test_a_script_that_ends_before_its_first_trial_does(tmp_path: Path) -> None:
    config = {"run_option": "PS", "search_partitions": True}
    done = run(tmp_path, partitioner=1, config=config)
    expect(done)
    assert "search: not finished: 0 trials are saved for a resumed run" in done.stderr
    (tmp_path / "only").mkdir()
    done = run(tmp_path / "only", partitioner=1, config=config, overrides=["action=search"])
    assert done.status == 1
    assert f"action=search (parallel_run): the script ends after {STEPS} steps, before a number of" in done.stderr
    assert json.loads((done.run_dir / "summary.json").read_text())["status"] == "failed"


@pytest.mark.parametrize("option", ["MPI", "HYBRID"])
def test_a_learning_rate_that_is_fed(option: str, tmp_path: Path) -> None:
    """Also fetches a summary of the norm of clipped gradients, which no update needs: every worker gets the step's
    value."""
    done = run(tmp_path, config={"run_option": option}, rates=[0.1, 0.1], steps=STEPS // 2, watches=True)
    expect(done)
    seen = [told(done, worker, "clipped") for worker in (0, 1)]
    assert seen[0] == seen[1] and len(seen[0]) == STEPS // 2
    assert all(clipped == norm for clipped, norm in (line.split() for line in seen[0]))


def test_on_servers_the_first_worker_feeds_the_learning_rate(tmp_path: Path) -> None:
    expect(run(tmp_path, config={"run_option": "PS"}, rates=[0.1, 0.2]))


def test_a_learning_rate_that_is_fed_differently(tmp_path: Path) -> None:
    done = run(tmp_path, config={"run_option": "HYBRID"}, rates=[0.1, 0.2])
    assert done.status == 1
    assert (
        "«rate» must be fed the same value on all workers, because the update reads it. The values by rank:"
        in done.stderr
    )
    assert "[0.1 0.2]" in done.stderr
