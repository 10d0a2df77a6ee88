"""A run on two hosts that are namespaces of this machine, of which one has a control group for its worker.

`python -m tests.integration.memory_of_a_host FOLDER LIMIT_BYTES [overrides]` prints the standard error of the run as
JSON, or null if no control group can be made here.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.hosts import network
from benchmarks.hosts.cluster import Cluster
from benchmarks.hosts.network import Host, Link, Network
from tests.integration.control_groups import enter, limited_group
from tests.integration.runs import Running
from tests.integration.two_hosts import found_on

ROOT = Path(__file__).parents[2]
START_SECS = 300


def worker_on(host: Host) -> int:
    """Returns the id of the worker on a host, when it has started. Raises TimeoutError."""
    deadline_secs = time.monotonic() + START_SECS
    while time.monotonic() < deadline_secs:
        for process in found_on([host]):
            if process.is_running() and "parallax_runner.worker" in process.cmdline():
                return process.pid
        time.sleep(0.1)
    raise TimeoutError(f"no worker on {host.name}")


def main(folder: Path, limit_bytes: int, overrides: Sequence[str]) -> str | None:
    """Runs until the kernel ends the worker on the second host."""
    with Network(2, Link(1000)) as made, limited_group("of_a_host", limit_bytes) as group:
        if group is None:
            return None
        hosts = tuple(made.hosts)
        given = [*overrides, *Cluster(2, hosts).overrides()]  # flags come first
        run = Running(given, run_dir=folder / "run", cwd=folder, python_path=ROOT)
        run.wait_for_step()
        enter(group, worker_on(hosts[1]))
        return run.wait().stderr


if __name__ == "__main__":
    network.enter([sys.executable, "-m", "tests.integration.memory_of_a_host", *sys.argv[1:]])
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])))
