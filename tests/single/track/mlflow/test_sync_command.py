"""`action=sync` on the command line: what it takes, and that it leaves nothing behind."""

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_runner.track.mlflow.journal import Header, Journal
from parallax_runner.track.mlflow.model import DESCRIPTION

ROOT = Path(__file__).parents[4]


def sync(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    program = (
        "import sys; from parallax_runner.__main__ import main\n"
        "status = main()\n"
        "print('loaded', *sorted({'tensorflow', 'mlflow'} & set(sys.modules)))\n"
        "sys.exit(status)"
    )
    return subprocess.run(
        [sys.executable, "-c", program, *arguments, "action=sync"],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "action=sync (command line): this action needs the folder of a run or a sweep; add run_dir=PATH"),
        (("-m", "run_dir=a,b"), "action=sync (command line): this action needs one run_dir"),
        (("run_dir=nowhere",), "nowhere: there is no journal.jsonl at or below this path"),
        (("run_dir=nowhere", "train.step=5"), "train.step"),
    ],
)
def test_mistakes_are_told(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = sync(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == "loaded\n"
    assert list(tmp_path.iterdir()) == []


def experiments(database: Path) -> set[str]:
    """Returns the names of the experiments in a store."""
    with contextlib.closing(sqlite3.connect(database)) as store:
        return {name for (name,) in store.execute("SELECT name FROM experiments")}


def test_a_run_is_sent_by_its_own_account_of_the_store(empty_store: Path, tmp_path: Path) -> None:
    """Neither the folder of the command nor its configuration says where: the journal does."""
    run_dir, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run_dir.mkdir()
    elsewhere.mkdir()
    shutil.copy(empty_store, tmp_path / "store.db")
    journal = Journal(run_dir / "journal.jsonl", Header(f"sqlite:///{tmp_path}/store.db", "exp", None))
    journal.append_start(summary={})
    journal.append_end("finished")
    assert "exp" not in experiments(tmp_path / "store.db")
    result = sync(f"run_dir={run_dir}", cwd=elsewhere)
    assert result.returncode == 0, result.stderr
    assert "3 entries sent" in result.stdout
    assert "tensorflow" not in result.stdout
    assert "exp" in experiments(tmp_path / "store.db")
    assert list(elsewhere.iterdir()) == []
    again = sync(f"run_dir={run_dir}", cwd=elsewhere)
    assert again.returncode == 0
    # Nothing to send needs no MLflow.
    assert again.stdout.endswith("\nloaded\n")
    assert "nothing to send" in again.stdout


def test_a_model_is_sent_without_tensorflow_and_its_lines_about_the_machine(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    saved_model = run_dir / "saved_model"
    (saved_model / DESCRIPTION).parent.mkdir(parents=True)
    features = {"x": {"dtype": "float32", "shape": [-1]}}
    described = {"checkpoint": "model.ckpt-3", "tags": ["serve"], "signature": "serving_default", "tensorflow": "2.9.9"}
    described |= {"inputs": features, "outputs": features, "example": {"x": [0.5]}}
    (saved_model / DESCRIPTION).write_text(json.dumps(described))
    journal = Journal(run_dir / "journal.jsonl", Header(f"sqlite:///{tmp_path}/store.db", "exp", None))
    journal.append_start(summary={})
    journal.append("event", event="model", fields={"saved_model": "saved_model"})
    journal.append_end("finished")
    result = sync(f"run_dir={run_dir}", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("\nloaded mlflow\n")
    (requirements,) = (tmp_path / "mlartifacts").rglob("model/requirements.txt")
    assert requirements.read_text().splitlines()[1:] == ["tensorflow==2.9.9"]
    (conda,) = (tmp_path / "mlartifacts").rglob("model/conda.yaml")
    assert "  - tensorflow==2.9.9\n" in conda.read_text()


def test_a_corrected_address_on_the_command_line_counts(empty_store: Path, tmp_path: Path) -> None:
    """The address in the journal cannot be reached: a slash is missing."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    journal = Journal(run_dir / "journal.jsonl", Header("sqlite://store.db", "exp", None))
    journal.append_start(summary={})
    journal.append_end("finished")
    refused = sync(f"run_dir={run_dir}", cwd=tmp_path)
    assert refused.returncode != 0
    assert "tracking.uri=sqlite://store.db: Invalid SQLite URL" in refused.stderr
    shutil.copy(empty_store, tmp_path / "corrected.db")
    result = sync(f"run_dir={run_dir}", f"tracking.uri=sqlite:///{tmp_path}/corrected.db", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "3 entries sent" in result.stdout
    assert "exp" in experiments(tmp_path / "corrected.db") and not (tmp_path / "store.db").exists()
