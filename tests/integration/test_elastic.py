"""Runs whose workers are lost and come back: they go on with as many workers as there are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests import forked
from tests.integration.runs import Run, launch, started
from tests.integration.test_fit_as_keras import expect_equal
from tests.integration.test_fit_restarts import FLOAT32, expect_same_variables, train
from tests.integration.test_manual import StandBy, standing_by, wait_until

FIT = Path(__file__).parent / "scripts" / "train_killed.py"
FIT_EPOCHS = 40
ROOT = Path(__file__).parents[2]
STEP_EXAMPLES, STEPS, SAVE_STEPS = 12, 400, 10
MODELS = {
    "v1": "_target_: tests.integration.resumable.build_deterministic",
    "keras": "{_target_: tests.integration.elastic.make_keras, labels: y, learning_rate: 0.05}",
    "counting": "_target_: tests.integration.elastic.build_counting",
}
DATA = "{{_target_: tests.integration.elastic.load, seed: 3, batch_size: {batch_size}, fast: {fast}}}"
FAST = ("train.log_every=50", "tracking=off", f"train.steps={STEPS}", f"ckpt.save_steps={SAVE_STEPS}")


def arguments(tmp_path: Path, model: str, batch_size: int) -> Sequence[str]:
    """Returns the arguments of a run whose steps are slow until the file `fast` exists."""
    texts = {"model": MODELS[model], "data": DATA.format(batch_size=batch_size, fast=tmp_path / "fast")}
    for group, text in texts.items():
        (tmp_path / "conf" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / group / "mine.yaml").write_text(text)
    return ("--config-dir", str(tmp_path / "conf"), "model=mine", "data=mine", *FAST)


def elastic(made: StandBy) -> Sequence[str]:
    cluster = ("cluster=manual", f"cluster.rendezvous={made.address}", "cluster.min_workers=1", "cluster.wait_secs=1")
    return (*cluster, "train.max_restarts=3")


@pytest.fixture
def at_folder(tmp_path: Path) -> Iterator[StandBy]:
    with standing_by(f"file://{tmp_path / 'meet'}", tmp_path / "logs", {}) as made:
        yield made


def variables(run: Run) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(run.ckpt_dir / f"model.ckpt-{STEPS}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.parametrize(
    ("model", "comm", "servers"),
    [
        ("v1", "sharded", 0),
        pytest.param("keras", "sharded", 0, id="more-keras"),
        pytest.param("v1", "hybrid", 1, id="more-hybrid"),
        pytest.param("v1", "mpi", 0, id="more-mpi"),
        pytest.param("v1", "ps", 1, id="more-ps"),
    ],
)
def test_three_two_three_workers_train_as_three(
    tmp_path: Path, at_folder: StandBy, model: str, comm: str, servers: int
) -> None:
    own = (*arguments(tmp_path, model, STEP_EXAMPLES // 3), f"comm={comm}", "cluster.workers=3")
    more = (*own, f"cluster.servers={servers}")
    for _ in range(servers):
        at_folder.start("server")
    _, victim, _ = [at_folder.start("worker") for _ in range(3)]
    with started(*more, *elastic(at_folder), cwd=tmp_path / "resized", python_path=ROOT) as running:
        running.wait_for_checkpoints(2)
        victim.kill()
        running.wait_for_line("parallax_runner: the run continues from step [0-9]+ with 2 workers instead of 3")
        at_folder.start("worker")
        running.wait_for_line("parallax_runner: the run continues from step [0-9]+ with 3 workers instead of 2")
        (tmp_path / "fast").touch()
        resized = running.wait().expect_success()
    whole = launch(*more, cwd=tmp_path / "whole", python_path=ROOT).expect_success()

    sizes = resized.summary["sizes"]
    assert [size["workers"] for size in sizes] == [3, 2, 3]
    assert 0 == sizes[0]["step"] < sizes[1]["step"] < sizes[2]["step"] < STEPS
    assert resized.summary["restarts"] == 1, "more workers are no failure"
    assert "sizes" not in whole.summary
    assert resized.plan["worker_numbers"] == [1, 2, 3]
    assert resized.sidecar(STEPS)["examples"] == whole.sidecar(STEPS)["examples"] == STEPS * STEP_EXAMPLES
    expect_equal_to(whole, resized)


@pytest.mark.parametrize("comm", ["hybrid", pytest.param("ps", id="more-server-of-ps")])
def test_a_run_goes_on_without_a_lost_server(tmp_path: Path, at_folder: StandBy, comm: str) -> None:
    own = (*arguments(tmp_path, "v1", STEP_EXAMPLES // 2), f"comm={comm}", "cluster.workers=2", "cluster.servers=2")
    victim, _ = [at_folder.start("server") for _ in range(2)]
    for _ in range(2):
        at_folder.start("worker")
    with started(*own, *elastic(at_folder), cwd=tmp_path / "resized", python_path=ROOT) as running:
        running.wait_for_checkpoints(2)
        victim.kill()
        running.wait_for_line(
            "parallax_runner: the run continues from step [0-9]+ with 2 workers and 1 server instead of 2"
        )
        at_folder.start("server")
        running.wait_for_line(
            "parallax_runner: the run continues from step [0-9]+ with 2 workers and 2 servers instead of 1"
        )
        (tmp_path / "fast").touch()
        resized = running.wait().expect_success()
    whole = launch(*own, cwd=tmp_path / "whole", python_path=ROOT).expect_success()
    assert [(size["workers"], size["servers"]) for size in resized.summary["sizes"]] == [(2, 2), (2, 1), (2, 2)]
    assert resized.summary["restarts"] == 1
    expect_equal_to(whole, resized)


def expect_equal_to(whole: Run, resized: Run) -> None:
    """Expects a run that was resized to equal a whole one to rounding, with its slots."""
    expected, found = variables(whole), variables(resized)
    assert set(expected) == set(found)
    assert any("dagrad" in name or "accumulator" in name for name in expected), "slots are compared, too"
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    for field in ("loss_last", "validation_loss"):
        assert resized.summary[field] == pytest.approx(whole.summary[field], rel=1e-4)


def test_fit_has_the_history_of_keras_with_any_number_of_workers(tmp_path: Path, at_folder: StandBy) -> None:
    """Its epochs go on where they were, with the state of the callbacks and the sums of the metrics."""
    plain, _ = train(tmp_path, "plain", None, epochs=FIT_EPOCHS, slow_until=str(tmp_path))
    more = ["run_dir=run", "ckpt.save_steps=3", "train.log_every=5", *elastic(at_folder)]
    at_folder.python, at_folder.env = str(forked.STUB), forked.environment()
    asked = {"workers": 3, "epochs": FIT_EPOCHS, "slow_until": str(tmp_path / "fast"), "overrides": more}
    _, victim, _ = [at_folder.start("worker") for _ in range(3)]
    with ThreadPoolExecutor() as pool:
        training = pool.submit(train, tmp_path, "resized", "sharded", **asked)
        wait_until(lambda: training.done() or (tmp_path / "begin-2").exists())
        victim.kill()
        wait_until(lambda: training.done() or workers_in(tmp_path / "run") == 2)
        at_folder.start("worker")
        wait_until(lambda: training.done() or workers_in(tmp_path / "run") == 3)
        (tmp_path / "fast").touch()
        found, said = training.result()
    assert "with 2 workers instead of 3" in said and "with 3 workers instead of 2" in said
    expect_equal(found, plain, rel=FLOAT32)
    expect_same_variables(found, plain)


def workers_in(run_dir: Path) -> int:
    """Returns the number of workers in the newest plan of a run."""
    plan: dict[str, int] = json.loads((run_dir / "plan.json").read_text())
    return plan["workers"]
