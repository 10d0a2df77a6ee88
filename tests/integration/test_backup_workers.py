"""Backup workers in real processes: the slow chief delays no step, and no late gradient is applied."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from mlflow import MlflowClient

from tests.integration.runs import Run, interrupt, launch, started

WORKERS, STEPS, RELEASED, ROWS, RATE = 3, 20, 12, 30_000, 0.125
# Each example has a number, and a row of «marks» that only its own gradient moves. With `waits` rank 0 returns from
# step 1 when the others are at step RELEASED, and from that step when they are at the end.
MODEL = f"""
import os
import time
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.data.dataset import Feature

# By rank and step (from 0): the steps that other ranks must have begun before it continues. All begin step 0.
WAITS = {{
    (0, 0): "began_2_0",
    (1, 0): "began_0_0",
    (2, 0): "began_1_0",
    (1, 1): "began_0_1",
    (0, 1): "began_1_{RELEASED}",
    (1, {RELEASED}): "began_0_{RELEASED}",
    (0, {RELEASED}): "began_1_{STEPS - 1}",
}}


def note(number):
    step, rank = divmod(int(number[0]), {WORKERS})
    Path(f"began_{{rank}}_{{step}}").touch()
    deadline = time.monotonic() + 60
    while (rank, step) in WAITS and not Path(WAITS[rank, step]).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return number


class Numbered:
    features = {{"number": Feature((), "int32"), "x": Feature((3,), "float64"), "y": Feature((), "float64")}}
    words_per_example = None
    train_size = {ROWS}
    validation_size = 0

    def train_batch(self, start, size):
        draws = [np.random.default_rng(number).normal(size=4) for number in range(start, start + size)]
        numbers = np.arange(start, start + size, dtype=np.int32)
        return {{"number": numbers, "x": np.array(draws)[:, :3], "y": np.array(draws)[:, 3]}}


def build(features, optimizer, *, waits):
    number = features["number"]
    if waits:
        number = tf.numpy_function(note, [number], tf.int32)
        number.set_shape([1])
    marks = tf.get_variable("marks", [{ROWS}, 2], tf.float64, initializer=tf.zeros_initializer())
    weights = tf.get_variable("weights", [3], tf.float64, initializer=tf.zeros_initializer())
    error = tf.reduce_sum(features["x"] * weights, axis=1) - features["y"]
    loss = tf.reduce_sum(tf.nn.embedding_lookup(marks, number)) + tf.reduce_mean(tf.square(error))
    train_op = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    return {{"loss": loss, "train_op": train_op}}
"""
OPTIONS = (
    *("--config-dir", "own", "model=mine", "data=mine", "optimizer=adagrad", f"optimizer.learning_rate={RATE}"),
    f"optimizer.initial_accumulator_value={RATE}",
    *("comm=ps", "comm.ps.backup_workers=1", f"cluster.workers={WORKERS}", "cluster.servers=2"),
    *("partition=fixed", "partition.num=2", "ckpt.save_steps=1", "ckpt.keep=100", "train.log_every=5"),
)


def prepare(folder: Path, *, waits: bool) -> None:
    (folder / "mine.py").write_text(MODEL)
    files = {"model": f"_target_: mine.build\nwaits: {str(waits).lower()}\n"}
    files["data"] = "_target_: mine.Numbered\nbatch_size: 1\n"
    for group, text in files.items():
        (folder / "own" / group).mkdir(parents=True)
        (folder / "own" / group / "mine.yaml").write_text(text)


def admitted(marks: np.ndarray, steps: int) -> list[list[int]]:
    """Returns the workers whose gradients each step contains: those whose examples' rows have moved."""
    moved = marks[:, 0].reshape(-1, WORKERS) != 0
    assert not moved[steps:].any()
    return [np.flatnonzero(row).tolist() for row in moved[:steps]]


def assert_means_over_admitted(run: Run, steps: int) -> list[list[int]]:
    """Checks that the checkpoint of a step equals NumPy's result from the batches of the workers admitted to each
    step."""
    reader = tf.train.load_checkpoint(str(run.ckpt_dir / f"model.ckpt-{steps}"))
    found = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    assert found["global_step"] == steps
    sets = admitted(found["marks"], steps)
    marks, weights = np.zeros([ROWS, 2]), np.zeros(3)
    marks_slot, weights_slot = np.full([ROWS, 2], RATE), np.full(3, RATE)
    for step, ranks in enumerate(sets):
        assert len(ranks) == WORKERS - 1
        gradient = np.zeros(3)
        for number in (WORKERS * step + rank for rank in ranks):
            draw = np.random.default_rng(number).normal(size=4)
            gradient += 2 * (draw[:3] @ weights - draw[3]) * draw[:3] / len(ranks)
            marks_slot[number] += 1 / len(ranks) ** 2
            marks[number] = -RATE / len(ranks) / np.sqrt(marks_slot[number])
        weights_slot += gradient**2
        weights -= RATE * gradient / np.sqrt(weights_slot)
    expected = {"marks": marks, "marks/Adagrad": marks_slot, "weights": weights, "weights/Adagrad": weights_slot}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-10, err_msg=name)
    return sets


@pytest.fixture(scope="module")
def slow_chief(tmp_path_factory: pytest.TempPathFactory) -> Run:
    cwd = tmp_path_factory.mktemp("slow_chief")
    prepare(cwd, waits=True)
    return launch(*OPTIONS, f"train.steps={STEPS}", cwd=cwd).expect_success()


def began_by_chief(run: Run) -> set[int]:
    return {int(path.name.rpartition("_")[2]) for path in run.run_dir.parent.glob("began_0_*")}


def began_last(run: Run) -> bool:
    """Returns whether the chief, released when the others had begun the last step, also began it before they completed
    it."""
    return STEPS - 1 in began_by_chief(run)


def test_no_step_waits_for_the_slow_one_and_none_contains_what_it_brings_late(slow_chief: Run) -> None:
    *sets, last = assert_means_over_admitted(slow_chief, STEPS)
    assert sets[1:] == [[1, 2]] * (STEPS - 2)
    assert last == [1, 2] or began_last(slow_chief)
    # The chief skipped the steps that were done without it.
    assert began_by_chief(slow_chief) - {STEPS - 1} == {0, 1, RELEASED}
    assert slow_chief.summary["steps"] == STEPS


def test_checkpoints_are_named_by_what_they_contain(slow_chief: Run) -> None:
    saved = sorted(int(path.stem.rpartition("-")[2]) for path in slow_chief.ckpt_dir.glob("*.json"))
    assert saved[-1] == STEPS
    for step in saved:
        assert_means_over_admitted(slow_chief, step)
        assert slow_chief.sidecar(step)["examples"] == step * WORKERS


def test_dropped_gradients_are_in_the_summary_and_in_mlflow(slow_chief: Run) -> None:
    summary = slow_chief.summary
    by_worker = [summary[f"dropped_gradients_worker_{rank}"] for rank in range(WORKERS)]
    # The chief's waiting drops two, and each step that all three began drops one.
    total = 3 + began_last(slow_chief)
    assert by_worker[0] >= 2
    assert sum(by_worker) == summary["dropped_gradients_total"] == total
    client = MlflowClient(tracking_uri=f"sqlite:///{slow_chief.run_dir.parent / 'mlflow.db'}")
    metrics = client.get_run(summary["mlflow_run_id"]).data.metrics
    assert metrics["dropped_gradients/total"] == total
    assert [metrics[f"dropped_gradients/worker_{rank}"] for rank in range(WORKERS)] == by_worker
    for key in ("train/loss", "train/dropped_gradients"):
        assert [metric.step for metric in client.get_metric_history(summary["mlflow_run_id"], key)][-1] == STEPS


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    prepare(tmp_path, waits=False)
    with started(*OPTIONS, "train.steps=9000", "tracking=off", cwd=tmp_path) as running:
        running.wait_for_step()
        interrupt(running)
        stopped = running.wait()
        assert not running.left()
    assert stopped.summary["status"] == "interrupted"
    done = stopped.summary["steps"]
    assert_means_over_admitted(stopped, done)
    resumed = launch(*OPTIONS, f"train.steps={done + 20}", "tracking=off", cwd=tmp_path).expect_success()
    assert (resumed.summary["first_step"], resumed.summary["steps"]) == (done, done + 20)
    assert_means_over_admitted(resumed, done + 20)
