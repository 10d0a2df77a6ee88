"""Workers of `fit` that are killed, and runs of `fit` that go on with another number of workers, beside plain Keras."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.checkpoints.checkpoint_files import list_checkpoints, read_sidecar
from tests.integration.test_fit import run
from tests.integration.test_fit_as_keras import expect_equal

# Keras keeps the sums of metrics in float32.
FLOAT32 = 1e-6
SCRIPT = Path(__file__).parent / "scripts" / "train_killed.py"
EPOCHS = 3
COMPARED = ("epoch", "history", "weights", "optimizer")
STEPS_PER_EPOCH = 8


def start(cwd: Path, name: str, comm: str | None, **asked: Any) -> subprocess.CompletedProcess[str]:
    left = str(cwd / f"{name}.json")
    given = {"comm": comm, "left": left, "workers": 2, "epochs": EPOCHS, "kills": [], "overrides": []} | asked
    return run(SCRIPT, json.dumps(given), cwd=cwd)


def train(cwd: Path, name: str, comm: str | None, **asked: Any) -> tuple[dict[str, Any], str]:
    """Returns what the script leaves, and its messages."""
    done = start(cwd, name, comm, **asked)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((cwd / f"{name}.json").read_text())
    return found, done.stderr


def newest_step(folder: Path) -> int:
    return read_sidecar(list_checkpoints(folder)[-1]).step


def expect_same_variables(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for what in ("weights", "optimizer"):
        expect_equal(found[what], expected[what], what, rel=1e-8)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found, _ = train(tmp_path_factory.mktemp("plain"), "plain", None)
    return found


@pytest.mark.parametrize("comm", ["sharded", "mpi", "ps"])
def test_a_killed_worker_changes_neither_weights_nor_history(comm: str, plain: dict[str, Any], tmp_path: Path) -> None:
    kills = [[1, str(tmp_path / "begin-1")]]
    overrides = ["run_dir=run", "ckpt.save_steps=3", "train.max_restarts=2", "train.log_every=5"]
    found, said = train(tmp_path, "killed", comm, kills=kills, overrides=overrides)
    assert (tmp_path / "begin-1.killed").exists()
    assert "restart 1 of 2" in said
    expect_equal(found, plain, rel=FLOAT32)
    expect_same_variables(found, plain)


def test_a_run_that_is_stopped_again_and_again_equals_an_unbroken_run(tmp_path: Path) -> None:
    """A callback's SIGTERM stops the run at the end of an epoch, then a worker dies within an epoch, then SIGTERM comes
    again. Keras' callbacks count epochs over all processes. A process that repeats the finished run trains nothing."""
    options: dict[str, Any] = {"epochs": 6, "counts": True}
    overrides = ["run_dir=run", "ckpt.save_steps=3", "train.log_every=5"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    whole.mkdir()
    stopped.mkdir()
    expected, _ = train(whole, "plain", None, **options)
    assert expected["epoch"] == [0, 1, 2, 3]  # EarlyStopping ends the training
    unbroken, _ = train(whole, "unbroken", "sharded", **options, overrides=overrides)
    for what in COMPARED:
        expect_equal(unbroken[what], expected[what], what, rel=FLOAT32)
    options |= {
        "overrides": overrides,
        "stops": [0, 2],
        "kills": [[1, str(stopped / "run" / "ckpt" / "model.ckpt-18.json")]],
    }
    steps = []
    for is_killed in (False, True, False):
        done = start(stopped, "stopped", "sharded", **options)
        assert (done.returncode == 143) != is_killed, done.stderr
        steps.append(newest_step(stopped / "run" / "ckpt"))
    assert (steps[0], steps[2]) == (STEPS_PER_EPOCH, 3 * STEPS_PER_EPOCH)  # no step of the next epoch
    assert steps[1] in (18, 21)
    for name in ("resumed", "repeated"):
        found, said = train(stopped, name, "sharded", **options)
        assert ("returns the result of the finished run" in said) == (name == "repeated")
        assert [what for what in COMPARED if found[what] != unbroken[what]] == []
    assert found["seen"] == []


@pytest.mark.parametrize("workers", [1, 3])
def test_a_run_goes_on_with_another_number_of_workers(workers: int, plain: dict[str, Any], tmp_path: Path) -> None:
    overrides = ["run_dir=run", "ckpt.save_steps=3"]
    train(tmp_path, "first", "sharded", epochs=1, overrides=overrides)
    found, said = train(tmp_path, "second", "sharded", workers=workers, overrides=[*overrides, "ckpt.resume=auto"])
    assert f"at step {STEPS_PER_EPOCH}" in said
    expect_same_variables(found, plain)
