"""Workers of `fit` that are killed, and runs of `fit` that go on with another number of workers, beside plain Keras."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_fit import run
from tests.integration.test_fit_as_keras import expect_equal

# Keras keeps the sums of metrics in float32.
FLOAT32 = 1e-6
SCRIPT = Path(__file__).parent / "scripts" / "train_killed.py"
EPOCHS = 3
STEPS_PER_EPOCH = 8


def train(cwd: Path, name: str, comm: str | None, **asked: Any) -> tuple[dict[str, Any], str]:
    """Returns what the script leaves, and its messages."""
    left = cwd / f"{name}.json"
    given = {"comm": comm, "left": str(left), "workers": 2, "epochs": EPOCHS, "kills": [], "overrides": []} | asked
    done = run(SCRIPT, json.dumps(given), cwd=cwd)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(left.read_text())
    return found, done.stderr


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


@pytest.mark.parametrize("workers", [1, 3])
def test_a_run_goes_on_with_another_number_of_workers(workers: int, plain: dict[str, Any], tmp_path: Path) -> None:
    overrides = ["run_dir=run", "ckpt.save_steps=3"]
    train(tmp_path, "first", "sharded", epochs=1, overrides=overrides)
    found, said = train(tmp_path, "second", "sharded", workers=workers, overrides=[*overrides, "ckpt.resume=auto"])
    assert f"at step {STEPS_PER_EPOCH}" in said
    expect_same_variables(found, plain)
