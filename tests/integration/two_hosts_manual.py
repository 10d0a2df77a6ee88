"""Runs of cluster=manual whose workers are on two hosts that are namespaces of this machine, each with a network of its
own: `python -m tests.integration.two_hosts_manual FOLDER`. Prints as JSON what became of each run, by its mode."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.hosts import network
from benchmarks.hosts.cluster import Cluster, guarded
from benchmarks.hosts.network import DRIVER_ADDRESS, Host, Link, Network, enter_host
from parallax_runner.launch.launchers.manual.secret import VARIABLE
from tests.free_port import pick_free_port
from tests.integration.runs import Running
from tests.integration.two_hosts import addresses_of, found_on, wait_for_nobody

MODES = {"hybrid": ("worker", "worker", "server"), "sharded": ("worker", "worker")}
END_SECS = 60.0


def stand_by(host: Host, role: str, rendezvous: str, folder: Path) -> subprocess.Popen[bytes]:
    """A worker or a server that somebody starts on a host, with nothing but the rendezvous."""
    argv = [*enter_host(host.pid), sys.executable, "-m", f"parallax_runner.{role}", f"--rendezvous={rendezvous}"]
    with open(folder / f"{role}_on_{host.name}.log", "ab") as log:
        return subprocess.Popen(guarded(argv, signal.SIGTERM), stdout=log, stderr=log, cwd=folder)


def run_of(mode: str, folder: Path, cluster: Cluster) -> dict[str, Any]:
    """One run: the driver is on neither of the hosts."""
    folder.mkdir()
    rendezvous = f"tcp://{DRIVER_ADDRESS}:{pick_free_port()}"
    with ExitStack() as stack:
        others = []
        for number, role in enumerate(MODES[mode]):
            others.append(stand_by(cluster.hosts[number % 2], role, rendezvous, folder))
            stack.callback(others[-1].kill)
        given = ("experiment=quick", f"comm={mode}", "tracking=off", "train.steps=200", "train.log_every=20")
        given += ("cluster=manual", f"cluster.rendezvous={rendezvous}")
        before = cluster.sent_bytes()
        running = Running(given, run_dir=folder / "out", cwd=folder / "cwd", python_path=None)
        stack.callback(running.kill)
        running.wait_for_step()
        addresses = {host.name: addresses_of(found_on([host])) for host in cluster.hosts}
        run = running.wait()
        statuses = [one.wait(END_SECS) for one in others]
        sent = [after - early for early, after in zip(before, cluster.sent_bytes(), strict=True)]
    return {
        "exit_status": run.exit_status,
        "stderr": run.stderr,
        "summary": run.summary if run.exit_status == 0 else {},
        "statuses": statuses,
        "addresses": addresses,
        "sent_bytes": sent,
        "left": wait_for_nobody(cluster.hosts),
    }


def main(folder: Path) -> dict[str, Any]:
    """Both runs, one after the other."""
    os.environ[VARIABLE] = secrets.token_hex(16)
    with Network(2, Link(1000)) as made:
        cluster = Cluster(2, tuple(made.hosts), 1000)
        return {mode: run_of(mode, folder / mode, cluster) for mode in MODES}


if __name__ == "__main__":
    network.enter([sys.executable, "-m", "tests.integration.two_hosts_manual", *sys.argv[1:]])
    print(json.dumps(main(Path(sys.argv[1]))))
