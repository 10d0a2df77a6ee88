"""Runs on two hosts of which one is unlike the other, or is cut off: `python -m tests.chaos.hosts_runs FOLDER CASE …`.

Prints as JSON, by case, how the run ended. The hosts are namespaces of this machine.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from benchmarks.hosts import agent, network
from benchmarks.hosts.cluster import Cluster
from benchmarks.hosts.network import Host, Link, Network
from tests.chaos import unlike_hosts
from tests.integration.runs import Running
from tests.integration.ssh_hosts import SSHD, reached_by_ssh
from tests.integration.two_hosts import DETACHED, found_on, wait_for_nobody

ROOT = Path(__file__).parents[2]
STEPS = ("train.steps=60", "train.log_every=5", "ckpt.save_steps=20")
ENDLESS = ("train.steps=1000000", "train.log_every=5", "ckpt.save_steps=20")
CUT_SECS = 120
WAIT_SECS = 500


class Case:
    """The hosts, and how runs are started on them. `given` are the overrides of the command line."""

    def __init__(self, folder: Path, hosts: Sequence[Host], given: Sequence[str]) -> None:
        self.folder, self.hosts, self.given = folder, hosts, given

    def started(self, shell: str, *overrides: str) -> Running:
        """Starts a run by this remote shell."""
        words = [word for word in Cluster(2, tuple(self.hosts)).overrides() if agent.__file__ not in word]
        arguments = [*words, f"cluster.remote_shell='{shell}'", "tracking=off", *self.given, *overrides]
        return Running(arguments, run_dir=self.folder / "run", cwd=self.folder / "cwd", python_path=None)

    def detached(self) -> str:
        """Returns a remote shell whose processes are not the driver's children, as with ssh."""
        shell = self.folder / "shell"
        shell.write_text(DETACHED.format(agent=network.agent_command(self.hosts)))
        shell.chmod(0o755)
        return str(shell)

    def unlike(self, setup: Callable[[Path], str]) -> str:
        """Returns a remote shell to hosts of which the second is set up by the commands of `setup`."""
        return unlike_hosts.remote_shell(self.hosts, self.folder, {self.hosts[1].address: setup(self.folder)})

    def ended(self, running: Running) -> dict[str, Any]:
        """Waits for the end; returns what is to be known."""
        run = running.wait(WAIT_SECS)
        summary = run.summary if (run.run_dir / "summary.json").exists() else {}
        return {
            "exit_status": run.exit_status,
            "secs": round(run.secs),
            "summary": summary,
            "stderr": run.stderr,
        }


def cut(case: Case, secs: float, *overrides: str) -> dict[str, Any]:
    """Takes a host's link away for some seconds."""
    running = case.started(case.detached(), *ENDLESS, *overrides)
    running.wait_for_step()
    time.sleep(3)
    before = reported_step(running)
    _link(case.hosts[1], "down")
    down = time.monotonic()
    while running.process.poll() is None and time.monotonic() < down + secs:
        time.sleep(0.2)
    died_secs = None if running.process.poll() is None else time.monotonic() - down
    time.sleep(max(0.0, down + secs - time.monotonic()))
    _link(case.hosts[1], "up")
    up = time.monotonic()
    went_on_secs = None
    during = reported_step(running)
    while running.process.poll() is None and time.monotonic() < up + 200:
        if reported_step(running) > during + 5:
            went_on_secs = time.monotonic() - up
            running.process.terminate()
            break
        time.sleep(0.2)
    return {
        "before": before,
        "died_secs": died_secs,
        "went_on_secs": went_on_secs,
        **case.ended(running),
    }


def reported_step(running: Running) -> int:
    """Returns the last step that the driver has reported."""
    return max(
        (
            int(step)
            for step in re.findall(r"^step (\d+)/", (running.run_dir.parent / "cwd" / "stderr.txt").read_text(), re.M)
        ),
        default=0,
    )


def _link(host: Host, state: str) -> None:
    subprocess.run(["ip", "link", "set", host.outer_interface, state], check=True)


def clock(case: Case, offset: str) -> dict[str, Any]:
    """The second host's clock is wrong. The run is then resumed."""
    shell = case.unlike(lambda folder: unlike_hosts.with_clock(folder, offset))
    first = case.ended(case.started(shell, *STEPS, "ckpt.save_secs=2"))
    again = case.ended(case.started(shell, *STEPS, "train.steps=80"))
    return {"first": first, "again": again}


def disk(case: Case, setup: str) -> dict[str, Any]:
    """A disk of the second host is full or read-only."""
    return case.ended(case.started(case.unlike(lambda _: setup), *STEPS))


def other_code(case: Case) -> dict[str, Any]:
    """The second host has another version of this project's code."""
    other = case.folder / "other"
    for name in ("parallax_runner", "conf"):
        shutil.copytree(ROOT / name, other / name)
    with open(other / "parallax_runner" / "metrics.py", "a") as file:
        file.write("\n# another version\n")
    return case.ended(case.started(case.unlike(lambda folder: unlike_hosts.with_python_path(folder, other)), *STEPS))


def other_package(case: Case, name: str, version: str) -> dict[str, Any]:
    """The second host has another version of a package."""
    other = case.folder / "other" / f"{name}-{version}.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    shell = case.unlike(lambda folder: unlike_hosts.with_python_path(folder, other.parent))
    return case.ended(case.started(shell, *STEPS))


def no_package(case: Case, name: str, *more: str) -> dict[str, Any]:
    """The second host lacks a package."""
    other = case.folder / "other"
    other.mkdir()
    (other / f"{name}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')\n")
    shell = case.unlike(lambda folder: unlike_hosts.with_python_path(folder, other))
    return case.ended(case.started(shell, *STEPS, *more))


def sshd_killed(case: Case) -> dict[str, Any]:
    """The sshd of the second host is killed during a run, then a worker there. Later, the sshd is back."""
    host = case.hosts[1]
    with reached_by_ssh(case.hosts, case.folder) as shell, ExitStack() as stack:
        running = case.started(shell, *ENDLESS, "train.max_restarts=2")
        running.wait_for_checkpoints(1)
        _kill(one for one in _sshd_on(host) if "-D" in one.cmdline())
        time.sleep(5)
        is_alive = running.process.poll() is None
        _kill(one for one in found_on([host]) if "parallax_runner.worker" in one.cmdline())
        running.wait_for_line("parallax_runner: host .* The run waits for this host")
        listening = [*network.enter_host(host.pid), str(SSHD), "-D", "-f", str(case.folder / "server")]
        stack.callback(subprocess.Popen(listening).kill)
        running.wait_for_line("restoring step")
        step = reported_step(running)
        while reported_step(running) <= step and running.process.poll() is None:
            time.sleep(0.2)
        running.process.terminate()
        ended = case.ended(running)
    return {"alive": is_alive, **ended}


def sessions_killed(case: Case) -> dict[str, Any]:
    """All sshd of the second host are killed during a run, also those of the connections that exist."""
    with reached_by_ssh(case.hosts, case.folder) as shell:
        running = case.started(shell, *ENDLESS)
        running.wait_for_checkpoints(1)
        _kill(_sshd_on(case.hosts[1]))
        ended = case.ended(running)
    return {**ended}


def _sshd_on(host: Host) -> list[psutil.Process]:
    return [one for one in found_on([host]) if one.name().startswith("sshd")]


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in list(processes):
        process.kill()


CASES: dict[str, Callable[[Case], dict[str, Any]]] = {
    "cut_20": lambda case: cut(case, 20),
    "cut_120": lambda case: cut(case, CUT_SECS),
    "cut_120_restarts": lambda case: cut(case, CUT_SECS, "train.max_restarts=3"),
    "cut_60_patient": lambda case: cut(case, 60, "train.hang_timeout_secs=300"),
    "cut_120_patient": lambda case: cut(case, CUT_SECS, "train.hang_timeout_secs=300"),
    "clock_behind": lambda case: clock(case, "-1d"),
    "clock_ahead": lambda case: clock(case, "+400d"),
    "shm_full": lambda case: disk(case, unlike_hosts.full("/dev/shm")),
    "shm_read_only": lambda case: disk(case, unlike_hosts.with_disk("/dev/shm", "ro")),
    "tmp_full": lambda case: disk(case, unlike_hosts.full("/var/tmp")),
    "run_read_only": lambda case: disk(
        case, f"mount --bind {case.folder} {case.folder} && mount -o remount,bind,ro {case.folder}"
    ),
    "other_code": other_code,
    "other_keras": lambda case: other_package(case, "keras", "3.0.1"),
    "no_horovod": lambda case: no_package(case, "horovod", "comm.backend=horovod"),
    "no_tensorflow": lambda case: no_package(case, "tensorflow"),
    "sshd_killed": sshd_killed,
    "sessions_killed": sessions_killed,
}


def main(folder: Path, names: Sequence[str], given: Sequence[str]) -> dict[str, Any]:
    """Makes the runs of these cases, one after the other."""
    found = {}
    with Network(2, Link(1000)) as made:
        for name in names:
            own = folder / name
            own.mkdir(parents=True)
            found[name] = CASES[name](Case(own, made.hosts, given)) | {"left": wait_for_nobody(made.hosts)}
    return found


if __name__ == "__main__":
    network.enter([sys.executable, "-m", "tests.chaos.hosts_runs", *sys.argv[1:]])
    cases = [word for word in sys.argv[2:] if word in CASES]
    overrides = [word for word in sys.argv[2:] if word not in CASES]
    print(json.dumps(main(Path(sys.argv[1]), cases, overrides)))
