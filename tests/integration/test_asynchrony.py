"""One worker of a test model is slow: sync waits, async does not, and bounded staleness stops at k."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from mlflow import MlflowClient

from tests.integration.runs import LAUNCH_SECS, Run, launch, started
from tests.shared import shared

STEPS, WORKERS, SLOW_SECS, BOUND = 16, 2, 0.15, 2
AHEAD_SECS = 50  # below the limit from which a worker counts as frozen
# The gradient is 1 everywhere, exactly, in float64. Each step records when it has pulled. In its first steps rank 1
# then waits until rank 0 is a number of steps ahead of those that rank 1 has done, and a little longer, in case rank 0
# begins a further step that it must not. Rank 0 does not end its first step before rank 1 is in its own, because pushes
# from before a worker began make nothing stale.
MODEL = f"""
import os
import time

import tensorflow.compat.v1 as tf


def noted(rank):
    with open(f"began_{{rank}}.txt", "a+") as file:
        file.seek(0)
        return len(file.readlines())


def wait_for(rank, steps):
    deadline = time.monotonic() + {AHEAD_SECS}
    while noted(rank) < steps:
        assert time.monotonic() < deadline, f"worker {{rank}} did not begin step {{steps}}"
        time.sleep(0.01)


def note(x, _pulled, ahead):
    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    with open(f"began_{{rank}}.txt", "a") as file:
        print(time.monotonic(), file=file)
    if rank == "0":
        wait_for(1, 1)
    else:
        wait_for(0, min(noted(1) - 1 + ahead, {STEPS}))
        time.sleep({SLOW_SECS})
    return x


def build(features, optimizer, *, ahead):
    weights = tf.get_variable("weights", [1000], tf.float64, initializer=tf.zeros_initializer())
    pulled = tf.stop_gradient(tf.reduce_sum(weights))
    x = tf.numpy_function(lambda x, pulled: note(x, pulled, ahead), [features["x"], pulled], tf.float32)
    one = tf.cast(1 + 0 * tf.reduce_sum(x), tf.float64)  # so that the gradient waits too
    loss = tf.reduce_sum(weights * one)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    return {{"loss": loss, "train_op": train_op}}
"""
OPTIONS = (
    *("--config-dir", "own", "model=slow", "data=linear", "optimizer=momentum"),
    *("optimizer.learning_rate=1", "optimizer.momentum=1", f"train.steps={STEPS}", f"cluster.workers={WORKERS}"),
    *("comm=ps", "cluster.servers=2", "train.log_every=4", "ckpt.save_steps=1", "ckpt.keep=100"),
)


def prepare(cwd: Path) -> None:
    (cwd / "slow_model.py").write_text(MODEL)
    (cwd / "own" / "model").mkdir(parents=True)
    (cwd / "own" / "model" / "slow.yaml").write_text("_target_: slow_model.build\nahead: 1\n")


def ahead(*options: str) -> str:
    """Returns the option for the lead of the quick worker at which the slow one continues."""
    if "comm.sync=false" not in options:
        return "model.ahead=1"
    return f"model.ahead={BOUND if f'comm.ps.staleness={BOUND}' in options else 2 * BOUND + 2}"


@pytest.fixture(scope="session")
def slow_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Runs the model with one slow worker; each kind of run is made once per session."""

    def run(*options: str) -> Run:
        def make(cwd: Path) -> Run:
            prepare(cwd)
            return launch(*OPTIONS, *options, ahead(*options), cwd=cwd).expect_success()

        return shared(tmp_path_factory, "_".join(["slow", *options]), make)

    return run


def lead(run: Run) -> int:
    """Returns the largest number of steps by which rank 0 was ahead of the slow rank when it began one."""
    # Later entries come from the export of the model, which runs it once.
    fast, slow = (np.loadtxt(run.run_dir.parent / f"began_{rank}.txt")[:STEPS] for rank in (0, 1))
    assert (len(fast), len(slow)) == (STEPS, STEPS)
    return max(number + 1 - int(np.searchsorted(slow, began)) for number, began in enumerate(fast))


def pushes_in(run: Run, step: int) -> int:
    """Returns the number of pushes in a checkpoint, which must be the same in each of its variables."""
    reader = tf.train.load_checkpoint(str(run.ckpt_dir / f"model.ckpt-{step}"))
    pushes = int(reader.get_tensor("global_step"))
    np.testing.assert_array_equal(reader.get_tensor("weights/Momentum"), float(pushes))
    np.testing.assert_array_equal(reader.get_tensor("weights"), -pushes * (pushes + 1) / 2)
    return pushes


def test_sync_waits(slow_run: Callable[..., Run]) -> None:
    run = slow_run("tracking=off")
    assert lead(run) <= 1
    assert "staleness_max" not in run.summary


def test_async_does_not_wait(slow_run: Callable[..., Run]) -> None:
    run = slow_run("comm.sync=false")
    assert lead(run) > 2 * BOUND
    assert run.summary["staleness_max"] > BOUND


def test_bounded_staleness_stops_at_k(slow_run: Callable[..., Run]) -> None:
    run = slow_run("comm.sync=false", f"comm.ps.staleness={BOUND}", "tracking=off")
    # The slow worker waits until the other is BOUND steps ahead of those that it has done, which is one less ahead of
    # those that it has begun, unless the quick one begins its next step before the slow one has recorded its own.
    assert BOUND - 1 <= lead(run) <= BOUND
    # While the slow worker is in a step, the other ends at most BOUND steps, plus as many by which it was behind.
    assert 0 < run.summary["staleness_max"] <= 2 * BOUND


@pytest.mark.parametrize("bound", [(), (f"comm.ps.staleness={BOUND}", "tracking=off")])
def test_checkpoints_contain_whole_pushes_and_the_last_one_all(
    slow_run: Callable[..., Run], bound: tuple[str, ...]
) -> None:
    run = slow_run("comm.sync=false", *bound)
    pushes = [pushes_in(run, step) for step in range(1, STEPS + 1)]
    assert pushes == sorted(pushes)
    assert pushes[-1] == STEPS * WORKERS


def test_staleness_is_in_mlflow(slow_run: Callable[..., Run]) -> None:
    run = slow_run("comm.sync=false")
    client = MlflowClient(tracking_uri=f"sqlite:///{run.run_dir.parent / 'mlflow.db'}")
    run_id = run.summary["mlflow_run_id"]
    metrics = client.get_run(run_id).data.metrics
    bins = {key: count for key, count in metrics.items() if key.startswith("staleness/") and key[10].isdigit()}
    assert sum(bins.values()) == STEPS * WORKERS
    assert metrics["staleness/max"] == run.summary["staleness_max"]
    assert metrics["staleness/mean"] == pytest.approx(run.summary["staleness_mean"])
    assert "plots/staleness.png" in {entry.path for entry in client.list_artifacts(run_id, "plots")}


@pytest.mark.parametrize(("bound", "wait_steps"), [((), 300), ((f"comm.ps.staleness={BOUND}",), 12)])
def test_a_stopped_run_has_whole_pushes_and_goes_on(bound: tuple[str, ...], wait_steps: int, tmp_path: Path) -> None:
    prepare(tmp_path)
    options = (*OPTIONS, "comm.sync=false", *bound, "tracking=off", "ckpt.save_steps=null")
    with started(*options, "train.steps=100000", cwd=tmp_path) as running:
        deadline = time.monotonic() + LAUNCH_SECS
        began = tmp_path / "began_0.txt"
        while not began.exists() or len(began.read_text().splitlines()) < wait_steps:
            assert running.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        # Without a bound the slow worker is further behind than it could catch up before all are killed.
        running.process.send_signal(signal.SIGTERM)
        stopped = running.wait()
        assert not running.left()
    assert stopped.summary["status"] == "interrupted"
    done = stopped.summary["steps"]
    assert done >= wait_steps - 1
    pushes = pushes_in(stopped, done)
    assert pushes < WORKERS * done or bound
    resumed = launch(*options, f"train.steps={done + 5}", cwd=tmp_path).expect_success()
    assert (resumed.summary["first_step"], resumed.summary["steps"]) == (done, done + 5)
    assert pushes_in(resumed, done + 5) == pushes + 5 * WORKERS
