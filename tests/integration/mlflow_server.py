"""A real tracking server for tests, which can be stopped and started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from benchmarks.hosts.cluster import guarded
from tests.free_port import pick_free_port

START_SECS = 90


class MlflowServer:
    """`mlflow server` on a free port, with a SQLite database and artifacts in `folder`; initially stopped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._port = pick_free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the server; returns when it answers."""
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self.folder}/server.db"]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        with open(self.folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                guarded(command, signal.SIGKILL),
                cwd=self.folder,
                env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECS
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < deadline, (self.folder / "server.log").read_text()
            time.sleep(0.2)

    def stop(self) -> None:
        """Kills the server, as a crash does."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False
