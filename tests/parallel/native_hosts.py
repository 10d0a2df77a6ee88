"""Native exchanges on two hosts that are namespaces of this machine: `python -m tests.parallel.native_hosts FOLDER`.

Runs `native_script.py` with two ranks on each host, twice: FOLDER/sockets, where a rank sees the sockets over which MPI
reaches the other host, and FOLDER/no_sockets, where it does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.hosts import network
from benchmarks.hosts.network import Link, Network, agent_command
from parallax_runner.collectives.native.library import library
from parallax_runner.launch.hosts import Place, find_hosts
from parallax_runner.launch.job import thread_environment
from parallax_runner.launch.mpirun.command import (
    ALLOW_ROOT,
    SHARE_CORES,
    START_AT_ONCE,
    YIELD_WHEN_IDLE,
    find_mpirun,
)
from parallax_runner.launch.mpirun.over_hosts import mpirun_options
from tests.parallel.native_launch import ROOT, SCRIPT

HOSTS, RANKS_OF_HOST = 2, 2
RANKS = HOSTS * RANKS_OF_HOST
# The second time, a rank knows whether sockets tell what comes.
CASES = ("sums", "in_pieces", "waiting", "waiting", "idle")
WITHOUT_SOCKETS = Path(__file__).with_name("no_socket_folder.c")
END_SECS = 120


def main(folder: Path) -> None:
    """Makes both runs, one after the other."""
    shim = folder / "no_socket_folder.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(shim), str(WITHOUT_SOCKETS), "-ldl"], check=True)
    library()
    with Network(HOSTS, Link(1000)) as made:
        places = [Place(host.address, RANKS_OF_HOST, False) for host in made.hosts]
        hosts = find_hosts(places, agent_command(made.hosts))
        assert hosts is not None
        options = mpirun_options(hosts)
        run(folder / "sockets", options, {})
        run(folder / "no_sockets", options, {"LD_PRELOAD": str(shim)})


def run(folder: Path, options: list[str], env: Mapping[str, str]) -> None:
    """Runs the cases on all ranks. The ranks have the variables `env`, but mpirun does not."""
    folder.mkdir()
    given = {**thread_environment(1), **START_AT_ONCE, "PYTHONPATH": str(ROOT)}
    passed_on = [word for name in given for word in ("-x", name)]
    words = ["env", *(f"{name}={value}" for name, value in env.items())]
    program = [*words, sys.executable, str(SCRIPT), str(folder), *CASES]
    command = [find_mpirun(), "-np", str(RANKS), *YIELD_WHEN_IDLE, *SHARE_CORES, *options, *passed_on, *program]
    subprocess.run(command, env=os.environ | given | ALLOW_ROOT, cwd=folder, timeout=END_SECS, check=True)


if __name__ == "__main__":
    network.enter([sys.executable, "-m", "tests.parallel.native_hosts", *sys.argv[1:]])
    main(Path(sys.argv[1]))
