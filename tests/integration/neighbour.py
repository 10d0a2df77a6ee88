"""A run on one host, and a neighbour in its network: `python -m tests.integration.neighbour FOLDER [overrides]`.

Prints as JSON which of the run's ports answer on its own host and on the neighbour, and the result of a plain
TensorFlow session with a server there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.hosts import network
from benchmarks.hosts.network import DRIVER_ADDRESS, Host, Link, Network, enter_host
from parallax_runner.launch.bind_address import LOOPBACK
from tests.integration.listening import listening, with_descendants
from tests.integration.runs import Running

# Reads a file of the server's user, as an attacker with access to the port would. Prints the error's name if it fails.
INTRUDER = """
import sys
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
content = tf.io.read_file("/etc/hostname")
try:
    with tf.Session(sys.argv[1], config=tf.ConfigProto(operation_timeout_in_ms=5000)) as session:
        print(session.run(content).decode())
except tf.errors.OpError as error:
    print(type(error).__name__)
"""
# Prints the ports that answer.
SCAN = """
import contextlib, json, socket, sys

answering = []
for port in sys.argv[2:]:
    with contextlib.suppress(OSError):
        socket.create_connection((sys.argv[1], int(port)), timeout=2).close()
        answering.append(int(port))
print(json.dumps(answering))
"""


def on(host: Host | None, program: str, *arguments: object) -> str:
    """Returns the output of a Python program on a host, or here."""
    command = [*(enter_host(host.pid) if host else ()), sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main(folder: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Starts a run in the driver's network, which one host is joined to."""
    with Network(1, Link(1000)) as made:
        running = Running(["tracking=off", *overrides], run_dir=folder / "run", cwd=folder / "cwd", python_path=None)
        try:
            running.wait_for_step()
            ports = {one.port for one in listening(with_descendants(psutil.Process(running.process.pid)))}
            [server] = listening([running.member("server", 0)])
            return {
                "ports": len(ports),
                "answering_here": json.loads(on(None, SCAN, LOOPBACK, *ports)),
                "session_here": on(None, INTRUDER, f"grpc://{LOOPBACK}:{server.port}"),
                "answering_there": json.loads(on(made.hosts[0], SCAN, DRIVER_ADDRESS, *ports)),
                "session_there": on(made.hosts[0], INTRUDER, f"grpc://{DRIVER_ADDRESS}:{server.port}"),
            }
        finally:
            running.kill()


if __name__ == "__main__":
    network.enter([sys.executable, "-m", "tests.integration.neighbour", *sys.argv[1:]])
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2:])))
