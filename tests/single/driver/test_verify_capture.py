"""What the driver says about the captured graph and the model's own step, before it starts workers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from parallax_runner.config.frozen import from_plain
from parallax_runner.config.objective import TRAINING_LOSS
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.ended import RunEnded
from parallax_runner.driver.planned_run import PlannedRun
from parallax_runner.driver.prepared_run import PreparedRun
from parallax_runner.driver.recovery import Recovery
from parallax_runner.driver.run_state import RunState
from parallax_runner.driver.run_summary import UntouchedSummary
from parallax_runner.driver.verify_capture import verify_capture
from parallax_runner.graph.build import MODEL
from parallax_runner.shipment.shipment import Shipment
from tests.single.small_models import BATCH, WIDTH, dense_model, planned
from tests.single.train.one_rank import dataset


def make_step(kind: str) -> Any:
    """A step that is right, or counts in Python, or draws from TensorFlow's own stream."""
    weights = tf.Variable(tf.ones([WIDTH], tf.float64), name="weights")
    calls = [0]

    def step(batch: dict[str, Any]) -> Any:
        noise = tf.random.normal([BATCH], dtype=tf.float64) if kind == "draws" else 0.0
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.linalg.matvec(batch["x"], weights) - batch["y"] - noise))
        calls[0] += 1 if kind == "counts" else 0
        weights.assign_sub(0.01 * tape.gradient(loss, weights) + calls[0])
        return loss

    return step


def prepared(config: RunConfig, run_dir: Path) -> PreparedRun:
    """A run whose graph was written for its workers."""
    data = dataset()
    shipment = Shipment.of(MODEL.build_graph(config, data), data)
    shipment.write(run_dir)
    never = dataclasses.replace(config, ckpt=dataclasses.replace(config.ckpt, resume="never"))
    start = Recovery(run_dir, never, resume="never", before=0)
    run = PlannedRun(config, shipment, planned(shipment.single, "mpi"), measured=None, goal=TRAINING_LOSS)
    return PreparedRun(run, start, MODEL, make_epochs=None, before={})


def verified(kind: str, run_dir: Path, steps: int = 12, **model: Any) -> RunState:
    """The state after the first part of the verification."""
    target = f"{__name__}.make_step"
    config = from_plain(
        {
            "action": "verify",
            "model": {"_target_": target, "kind": kind, **model},
            "data": {"batch_size": BATCH},
            "train": {"seed": 1, "steps": steps},
            "run_dir": str(run_dir),
        }
    )
    state = RunState.begun(config)
    verify_capture(prepared(config, run_dir), state)
    return state


def test_an_equal_graph_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten steps at most are compared."""
    for steps, told in ((1, "1 step"), (3, "3 steps"), (12, "10 steps")):
        state = verified("right", tmp_path, steps)
        assert state.summary.untouched == UntouchedSummary(True, 0.0, None)
        assert capsys.readouterr().err == (
            "parallax_runner: the captured graph equals the model's own step: on one device, every variable matches "
            f"after each of {told}; the largest difference is 0 of the variable's change\n"
        )


def test_a_difference_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the second step, the step subtracts 2 and the graph subtracts 1."""
    with pytest.raises(RunEnded) as ended:
        verified("counts", tmp_path)
    assert ended.value.code == 1 and ended.value.run_dir == tmp_path
    fields = json.loads((tmp_path / "summary.json").read_text())
    told = "the captured graph differs from the model's own step on one device in step 2: weights: differs by 1 ("
    assert fields["error"].startswith(told) and "no worker was started" in fields["error"]
    assert f"parallax_runner: {told}" in capsys.readouterr().err
    expected = {"status": "failed", "untouched_verified": False, "untouched_left_out": None}
    expected |= {"verified": False, "max_difference": None}
    assert {name: fields[name] for name in expected} == expected
    assert 0.3 < fields["untouched_max_difference"] < 1


@pytest.mark.parametrize(
    ("kind", "model", "reason"),
    [
        (
            "draws",
            {},
            "«step/random_normal/RandomStandardNormal» (RandomStandardNormal) draws other numbers in a graph",
        ),
        ("right", {"sparse_updates": "lazy"}, "model.sparse_updates=lazy updates other rows than plain Keras"),
    ],
)
def test_what_cannot_be_compared_is_told(
    kind: str, model: dict[str, Any], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = verified(kind, tmp_path, **model)
    found = state.summary.untouched
    assert found is not None and (found.untouched_verified, found.untouched_max_difference) == (None, None)
    assert str(found.untouched_left_out).startswith(reason)
    told = f"parallax_runner: the captured graph is not compared with the model's own step: {reason}"
    assert capsys.readouterr().err.startswith(told)


def test_a_graph_that_the_user_builds_has_no_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = from_plain(
        {
            "model": {"_target_": f"{__name__}.build"},
            "optimizer": {"_target_": "tensorflow.compat.v1.train.GradientDescentOptimizer", "learning_rate": 0.1},
            "data": {"batch_size": BATCH},
            "train": {"seed": 1, "steps": 3},
            "run_dir": str(tmp_path),
            "action": "verify",
        }
    )
    state = RunState.begun(config)
    verify_capture(prepared(config, tmp_path), state)
    assert state.summary.untouched is None and not capsys.readouterr().err
    assert not [name for name in state.summary.flat() if name.startswith("untouched")]


def build(features: dict[str, Any], optimizer: Any) -> dict[str, Any]:
    """A graph of TensorFlow 1."""
    loss = tf.reduce_mean(tf.square(dense_model(features) - features["y"]))
    return {"loss": loss, "train_op": optimizer.minimize(loss)}
