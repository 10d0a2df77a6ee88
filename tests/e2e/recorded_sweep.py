"""The sweep that the browser looks at: the commands of docs/browsing.md, run as they stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run as MlflowRun

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "browsing.md"
BIN = Path(sys.executable).parent
EXPERIMENT = "parallax_runner"
RUN_SECS = 700


def command(word: str) -> str:
    """The command in docs/browsing.md that has `word` in it."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (found,) = [line for block in blocks for line in block.splitlines() if word in line]
    return found


def environment(**more: str) -> dict[str, str]:
    """This checkout's commands and modules; nothing of pytest's."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PYTEST_"))}
    paths = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return inherited | paths | {"MLFLOW_DISABLE_TELEMETRY": "true"} | more


@dataclass(frozen=True)
class Job:
    """One job of the sweep: what its directory holds, and its run in MLflow."""

    run_dir: Path
    run: MlflowRun

    @cached_property
    def summary(self) -> dict[str, Any]:
        """`summary.json`."""
        return json.loads((self.run_dir / "summary.json").read_text(encoding="utf-8"))

    @property
    def name(self) -> str:
        """What MLflow calls it."""
        return str(self.run.info.run_name)


@dataclass(frozen=True)
class RecordedSweep:
    """A sweep that has finished, in a folder of its own, under git."""

    folder: Path
    commit: str

    @cached_property
    def client(self) -> MlflowClient:
        """Reads the database that the sweep has written."""
        return MlflowClient(tracking_uri=f"sqlite:///{self.folder / 'mlflow.db'}")

    @cached_property
    def experiment_id(self) -> str:
        """Of the only experiment in use."""
        return self.client.get_experiment_by_name(EXPERIMENT).experiment_id

    @cached_property
    def dir(self) -> Path:
        """What the sweep has left behind."""
        (ledger,) = self.folder.glob("multirun/**/ledger.jsonl")
        return ledger.parent

    @cached_property
    def parent(self) -> MlflowRun:
        """The sweep's own run."""
        (run,) = [run for run in self._runs if "mlflow.parentRunId" not in run.data.tags]
        return run

    @cached_property
    def jobs(self) -> list[Job]:
        """The jobs by name; that they are the parent's children is for the browser to tell."""
        by_run = {
            json.loads(path.read_text(encoding="utf-8"))["mlflow_run_id"]: path.parent
            for path in self.dir.glob("*/summary.json")
        }
        found = [Job(by_run[run.info.run_id], run) for run in self._runs if run.info.run_id in by_run]
        return sorted(found, key=lambda job: job.name)

    @cached_property
    def _runs(self) -> list[MlflowRun]:
        return list(self.client.search_runs([self.experiment_id]))


def record(folder: Path) -> RecordedSweep:
    """Runs the sweep."""
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message=begin"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    done = subprocess.run(
        ["bash", "-c", command(" -m comm=")],
        cwd=folder,
        env=environment(XDG_CACHE_HOME=str(folder / "cache")),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_SECS,
    )
    assert done.returncode == 0, done.stdout
    return RecordedSweep(folder, commit)
