"""The commands of docs/tracking.md and docs/security.md, which need a tracking server or a namespace of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.integration.mlflow_server import MlflowServer
from tests.integration.runs import LAUNCH_SECS, launch

DOCS = Path(__file__).parents[2] / "docs"
SMALL = "train.steps=2 data.batch_size=8 data.validation_examples=64 data.vocab_size=2000 tracking=off"


def commands(page: str) -> list[str]:
    """Returns the commands in the page's blocks, a line each."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines()]


def run(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command as its reader does, with the interpreter of the tests as `python`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(DOCS.parent)},
        capture_output=True,
        text=True,
        timeout=LAUNCH_SECS,
        check=False,
    )


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[MlflowServer, MlflowServer]]:
    """Two tracking servers; neither has been started."""
    found = []
    for name in ("journal", "another"):
        (tmp_path / name).mkdir()
        found.append(MlflowServer(tmp_path / name))
    yield found[0], found[1]
    for server in found:
        server.stop()


def steps_of_runs(server: MlflowServer) -> list[list[int]]:
    """Returns the steps of the training loss of each run in the server."""
    client = MlflowClient(server.uri)
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    return [[point.step for point in client.get_metric_history(each.info.run_id, "train/loss")] for each in runs]


def test_a_run_is_sent_later_to_its_server_and_to_another(
    servers: tuple[MlflowServer, MlflowServer], tmp_path: Path
) -> None:
    own, another = servers
    later, elsewhere = commands("tracking")
    arguments = ("model=simple", "comm=local", "train.steps=6", "train.log_every=2", f"tracking.uri={own.uri}")
    done = launch(*arguments, cwd=tmp_path, name="runs/first")
    assert done.expect_success().summary["status"] == "finished"
    for command, server in ((later, own), (elsewhere.replace("http://another", another.uri), another)):
        assert run(command, tmp_path).returncode != 0, "the server does not run"
        server.start()
        sent = run(command, tmp_path)
        assert sent.returncode == 0, sent.stdout + sent.stderr
        assert steps_of_runs(server) == [[1, 2, 4, 6]]


def test_a_run_in_a_network_of_its_own(tmp_path: Path) -> None:
    (command,) = [line for line in commands("security") if line.startswith("unshare")]
    done = run(f"{command} {SMALL} run_dir={tmp_path}/run", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))["status"] == "finished"
