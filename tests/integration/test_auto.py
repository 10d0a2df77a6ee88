"""comm=auto, calibration and simulation, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.runs import LAUNCH_SECS, VOCAB_SIZE, Run, launch

SPARSE = {"embedding", "softmax_w", "softmax_b"}


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def auto(lm: tuple[str, ...], own_cache: object, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """20 steps; tracked, so there are artifacts."""
    cwd = tmp_path_factory.mktemp("auto")
    return launch(*lm, "comm=auto", "train.steps=20", "train.log_every=5", cwd=cwd).expect_success()


def test_auto_trains_by_the_routes_that_it_found_cheapest(auto: Run) -> None:
    assert auto.summary["steps"] == 20
    assert auto.summary["comm"] == "auto"
    assert list(auto.losses()) == [5, 10, 15, 20]
    assert auto.plan["rows_measured"] == json.loads((auto.run_dir / "measured.json").read_text())["made"]
    assert auto.plan["constants"] == "defaults"
    assert {variable["gradient"] for variable in auto.plan["variables"]} == {"dense", "sparse", "none"}
    for variable in auto.plan["variables"]:
        costs = {
            cost["route"]: cost["link_secs"] + cost["latency_secs"] + cost["work_secs"] for cost in variable["costs"]
        }
        expected = {"local"} if variable["gradient"] == "none" else {"allreduce", "ps"}
        expected |= {"allgather", "alltoall"} if variable["gradient"] == "sparse" else set()
        assert set(costs) == expected
        assert variable["route"] in costs
    owned = {variable["route"] for variable in auto.plan["variables"]}
    assert not {"ps", "alltoall"} <= owned


@pytest.mark.parametrize(("batch_size", "goes_dense"), [(500, True), (1, False)])
def test_rows_that_steps_touch_decide_and_not_the_kind_of_gradient(
    batch_size: int, goes_dense: bool, tmp_path: Path
) -> None:
    model = (f"hydra.searchpath=[{Path('benchmarks/conf').absolute()}]", "model=every_row", "data=zipf")
    data = ("data.vocab_size=2000", "data.offset=1e9", f"data.batch_size={batch_size}", "data.validation_examples=0")
    run = launch(*model, *data, "comm=auto", "train.steps=3", "tracking=off", cwd=tmp_path).expect_success()
    (table,) = [variable for variable in run.plan["variables"] if variable["name"] == "table"]
    assert table["gradient"] == "sparse"
    assert (table["alpha"] > 0.99, table["route"] == "allreduce") == (goes_dense, goes_dense)
    assert run.summary["steps"] == 3


def test_the_trial_has_counted_rows(auto: Run) -> None:
    found = json.loads((auto.run_dir / "measured.json").read_text())
    assert {rows["name"] for rows in found["rows"]} == SPARSE
    assert found["step_secs"] > 0
    for rows in found["rows"]:
        assert rows["samples"] == 40
        assert rows["rows"] == VOCAB_SIZE
        assert 0 < rows["distinct"] <= rows["merged"] <= min(VOCAB_SIZE, 2 * rows["distinct"])
        assert rows["distinct"] <= rows["ids"]
    by_name = {rows["name"]: rows for rows in found["rows"]}
    # 4 examples of 5 words; the softmax adds as many labels and its 10 sampled words.
    assert by_name["embedding"]["ids"] == 20
    assert by_name["softmax_b"]["ids"] == 30


def test_predicted_stands_beside_measured(auto: Run) -> None:
    found = json.loads((auto.run_dir / "plan_measured.json").read_text())
    assert found["measured_step_ms"] == auto.summary["step_ms_p50"]
    assert found["predicted_step_ms"] > 0
    assert found["measured_sent_bytes"] == auto.summary["sent_bytes_per_step"]
    # The rows come from other batches than the measured ones, and other code counts them.
    assert found["predicted_sent_bytes"] == pytest.approx(found["measured_sent_bytes"], rel=0.15)
    assert "measured / predicted" in auto.stderr
    for total in ("predicted_sent_bytes", "measured_sent_bytes"):
        assert sum(one[total] for one in found["variables"]) == pytest.approx(found[total])
    assert [(one["name"], one["route"]) for one in found["variables"]] == [
        (variable["name"], variable["route"]) for variable in auto.plan["variables"]
    ]
    assert {one["route"] for one in found["variables"]} > {"local"}  # some travel, and one does not
    for one in found["variables"]:
        assert one["measured_sent_bytes"] == pytest.approx(one["predicted_sent_bytes"], rel=0.3), one["name"]
        shown = f"{one['name']} by {one['route']}"
        assert (shown in auto.stderr) == (one["predicted_sent_bytes"] > 0)
    artifacts = {path.name for path in auto.run_dir.parent.glob("mlartifacts/**/*.json")}
    assert {"plan_measured.json", "measured.json"} <= artifacts


def test_a_later_plan_measures_nothing_again_and_shows_costs(auto: Run, lm: tuple[str, ...], tmp_path: Path) -> None:
    again = launch(*lm, "action=plan", "comm=auto", cwd=tmp_path).expect_success()
    assert "a short trial" in auto.stderr
    assert "a short trial" not in again.stderr
    again.expect_nothing_started()
    assert "cost of each route" in again.stderr
    assert "constants of the cost model: defaults" in again.stderr
    routes = [{v["name"]: v["route"] for v in run.plan["variables"]} for run in (auto, again)]
    assert routes[0] == routes[1]


def test_rows_are_measured_where_that_is_wanted_and_servers_balanced_by_them(
    lm: tuple[str, ...], tmp_path: Path
) -> None:
    arguments = (*lm, "comm=ps", "cluster.servers=2", "data.batch_size=3", "tracking=off", "ckpt=off", "train.steps=10")
    before = launch(*arguments, "action=plan", cwd=tmp_path, name="before").expect_success()
    assert (before.plan["rows_measured"], before.plan["predicted"]["step_ms"]) == (None, None)
    assert "comm.measure_rows=true measures the touched rows" in before.stderr
    run = launch(*arguments, "comm.measure_rows=true", cwd=tmp_path, name="run").expect_success()
    assert "a short trial" in run.stderr
    assert "servers are balanced by" not in run.stderr
    assert "measured / predicted" in run.stderr
    found = json.loads((run.run_dir / "plan_measured.json").read_text())
    assert found["predicted_step_ms"] > 0
    assert found["predicted_sent_bytes"] == pytest.approx(found["measured_sent_bytes"], rel=0.15)
    assert {shard["server"] for variable in run.plan["variables"] for shard in variable["shards"]} == {0, 1}
    another_seed = launch(*arguments, "action=plan", "train.seed=7", cwd=tmp_path, name="seed").expect_success()
    assert another_seed.plan["rows_measured"]


def test_simulation_from_that_measurement(auto: Run, tmp_path: Path) -> None:
    run = launch(
        "action=simulate",
        "cluster.workers=12",
        f"simulate.profile={auto.run_dir / 'measured.json'}",
        "simulate.bandwidth_gbit_per_sec=1",
        "simulate.workers_per_host=2",
        cwd=tmp_path,
    ).expect_success()
    found = json.loads((run.run_dir / "simulation.json").read_text())
    assert found["modelled"] is True
    assert {(point["comm"], point["workers"]) for point in found["points"]} == {
        (comm, workers) for comm in ("mpi", "ps", "hybrid", "sharded", "auto") for workers in range(1, 13)
    }
    assert "Modelled, not measured." in (run.run_dir / "simulation.md").read_text()
    assert (run.run_dir / "plots" / "simulation.png").stat().st_size > 10_000
    assert (run.summary["status"], run.summary["action"]) == ("finished", "simulate")
    run.expect_nothing_started()


def test_calibrated_constants_are_used_by_the_next_plan(own_cache: object, lm: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "parallax_runner.calibrate", "cluster.workers=2"],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=LAUNCH_SECS,
    )
    assert done.returncode == 0, done.stderr
    (measured,) = tmp_path.rglob("ranks_2/plan.json")
    assert json.loads(measured.read_text())["backend"] == "native", "what runs use"
    (kept,) = (Path(os.environ["XDG_CACHE_HOME"]) / "parallax_runner" / "calibration").glob("*.json")
    found = json.loads(kept.read_text())
    for name in ("allreduce", "allgather", "alltoall", "pull", "push"):
        assert 0 < found[name]["secs_per_byte"] < 1e-6
        assert 0 < found[name]["overhead_secs"] + found[name]["latency_secs"] < 1
    assert found["spread"]["allreduce.secs_per_byte"] > 0
    planned = launch(*lm, "action=plan", cwd=tmp_path, name="planned").expect_success()
    assert planned.plan["constants"] == found["source"]
    assert found["source"].startswith("calibrated 20")


@pytest.mark.parametrize("option", ["cluster.replicas_per_worker=2", "comm.sync=false", "comm.ps.backup_workers=1"])
def test_a_simulation_measures_one_replica_alone(option: str, tmp_path: Path) -> None:
    """A trial of one process does not contain the replicas or the staleness of the cluster's workers."""
    batch = f"data.batch_size={len(option)}"  # a unique value, so that nothing is cached for it
    arguments = ("model=simple", "action=simulate", "comm=ps", option, batch)
    run = launch(*arguments, cwd=tmp_path).expect_success()
    assert "a short trial" in run.stderr
    assert json.loads((run.run_dir / "measured.json").read_text())["step_secs"] > 0
