"""A real Redis server for tests, with nothing on disk."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from benchmarks.hosts.cluster import guarded
from tests.free_port import pick_free_port

PROGRAM = shutil.which("redis-server")
needs_redis = pytest.mark.skipif(PROGRAM is None, reason="redis-server is not installed (package redis-server)")
UP_SECS = 20.0


@contextlib.contextmanager
def redis_server(folder: Path, *, password: str = "", port: int | None = None) -> Iterator[int]:
    """Yields its port at 127.0.0.1."""
    assert PROGRAM is not None
    port = port or pick_free_port()
    conf = folder / f"redis-{port}.conf"
    lines = ["bind 127.0.0.1", f"port {port}", 'save ""', f"dir {folder}", f"logfile {folder}/redis-{port}.log"]
    conf.write_text("\n".join([*lines, *([f'requirepass "{password}"'] if password else [])]))
    server = subprocess.Popen(guarded([PROGRAM, str(conf)], signal.SIGKILL), stdout=subprocess.DEVNULL)
    try:
        _wait_until_up(server, redis.Redis(port=port, password=password or None))
        yield port
    finally:
        server.terminate()
        server.wait()


def _wait_until_up(server: subprocess.Popen[bytes], client: redis.Redis) -> None:
    deadline = time.monotonic() + UP_SECS
    while True:
        try:
            client.ping()
            return
        except redis.ConnectionError:
            assert server.poll() is None, "redis-server has ended"
            assert time.monotonic() < deadline
            time.sleep(0.02)
