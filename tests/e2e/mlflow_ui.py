"""`mlflow ui` on a folder's database, as a person starts it, and gone afterwards with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.hosts.cluster import guarded
from tests.e2e.recorded_sweep import command, environment
from tests.free_port import pick_free_port

UP_SECS = 120
DOWN_SECS = 20


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The server's address, once it answers."""
    port = pick_free_port()
    log = folder / "mlflow_ui.log"
    with open(log, "wb") as output:
        server = subprocess.Popen(
            guarded(["bash", "-c", f"exec {command('mlflow ui')} --workers 1 --port {port}"], signal.SIGTERM),
            cwd=folder,
            env=environment(MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false"),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_until_up(address, server, log)
        yield address
    finally:
        _end(server)


def _wait_until_up(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + UP_SECS
    while True:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=10):
                return
        except OSError:
            assert server.poll() is None and time.monotonic() < deadline, log.read_text(encoding="utf-8")
            time.sleep(0.3)


def _end(server: subprocess.Popen[bytes]) -> None:
    # All that it has started is in its session: the workers are children of children.
    family = [one for one in psutil.process_iter() if _session(one.pid) == server.pid]
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        server.wait(DOWN_SECS)
    _, alive = psutil.wait_procs(family, timeout=DOWN_SECS)
    for process in alive:
        process.kill()
    server.wait()


def _session(pid: int) -> int | None:
    with suppress(OSError):
        return os.getsid(pid)
    return None
