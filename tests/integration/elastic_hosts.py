"""A run on this machine and two hosts, namespaces that are lost and come back: `python -m
tests.integration.elastic_hosts FOLDER FAST [overrides]`.

First the host h2 loses power: all its processes end, also its sshd. Then h1 loses its link. Prints as JSON the exit
status, the output and what is left on the hosts. The run is fast once the file FAST exists.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.hosts import network
from benchmarks.hosts.network import Host, Link, Network
from parallax_runner.checkpoints.checkpoint_files import list_checkpoints, step_of
from tests.integration.runs import Running
from tests.integration.ssh_hosts import reached_by_ssh, start_sshd
from tests.integration.test_manual import wait_until
from tests.integration.two_hosts import found_on, wait_for_nobody

ROOT = Path(__file__).parents[2]
CONTINUES = re.compile(
    r"^parallax_runner: the run continues from step \d+ with (\d) workers instead of \d.*, on (.*)$", re.M
)


def lose_power(host: Host) -> None:
    """Ends all processes of a host at once."""
    for process in found_on([host]):
        with contextlib.suppress(psutil.Error):  # gone meanwhile
            process.kill()


def set_link(host: Host, state: str) -> None:
    """Sets a host's link `up` or `down`."""
    subprocess.run(["ip", "link", "set", host.outer_interface, state], check=True)


def wait_for_hosts(run: Running, change: int, hosts: Sequence[str]) -> None:
    """Waits until the run tells its change number `change`, from 1, and expects it to be on these hosts."""

    def told() -> Sequence[tuple[str, str]]:
        return CONTINUES.findall(run.stderr())

    wait_until(lambda: run.process.poll() is not None or len(told()) >= change)
    assert told()[change - 1 :] == [(str(len(hosts)), ", ".join(hosts))], run.stderr()


def wait_for_training(run: Running) -> None:
    """Waits until the run has saved a checkpoint since this call."""
    before = newest_step(run)
    wait_until(lambda: run.process.poll() is not None or newest_step(run) > before)


def newest_step(run: Running) -> int:
    return max(step_of(prefix) for prefix in list_checkpoints(run.run_dir / "ckpt"))


def main(folder: Path, fast: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Makes the run."""
    with Network(2, Link(1000)) as made:
        first, second = made.hosts
        with reached_by_ssh(made.hosts, folder) as shell:
            lines = ",".join(f"'{name}: 0'" for name in ("localhost", first.address, second.address))
            arguments = ["cluster=hosts", f"cluster.resource_info=[{lines}]", f"cluster.remote_shell='{shell}'"]
            run = Running([*overrides, *arguments], run_dir=folder / "run", cwd=folder / "cwd", python_path=ROOT)
            run.wait_for_checkpoints(2)
            lose_power(second)
            wait_for_hosts(run, 1, ["localhost", first.address])
            server = start_sshd(second, folder)
            wait_for_hosts(run, 2, ["localhost", first.address, second.address])
            wait_for_training(run)
            set_link(first, "down")
            wait_for_hosts(run, 3, ["localhost", second.address])
            set_link(first, "up")
            wait_for_hosts(run, 4, ["localhost", first.address, second.address])
            fast.touch()
            ended = run.wait(300.0)
            server.kill()
            server.wait()
        return {"exit_status": ended.exit_status, "stderr": ended.stderr, "left": wait_for_nobody(made.hosts)}


if __name__ == "__main__":
    network.enter([sys.executable, "-m", "tests.integration.elastic_hosts", *sys.argv[1:]])
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])))
