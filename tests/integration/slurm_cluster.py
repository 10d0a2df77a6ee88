"""A real Slurm of two nodes on this machine, in its own folder: munged, slurmctld and a slurmd for each node.

Each slurmd has a UTS namespace, so its jobs see the node's name as the host name. All addresses are 127.0.0.1, and no
name server knows the nodes. There is no accounting, so `sacct` has no data.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.hosts.cluster import guarded
from tests.free_port import pick_free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "unshare")
NODES = ("n1", "n2")
START_SECS = 120.0
WAIT_SECS = 400.0
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdTimeout=10
KillWait=15
MinJobAge=600
MaxArraySize=3
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1
PreemptMode=REQUEUE
PreemptType=preempt/partition_prio
GresTypes=gpu
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=8000 Gres=gpu:4 "
    "State=UNKNOWN\n"
)
# Each node has four GPUs for Slurm to hand out: files, since Slurm only looks whether they are there.
GPU_FILES = ("gpu0", "gpu1", "gpu2", "gpu3")
PARTITIONS = (
    "PartitionName=debug Nodes=n1,n2 Default=YES MaxTime=INFINITE PriorityTier=1 State=UP\n"
    "PartitionName=gpu Nodes=n1,n2 MaxTime=INFINITE PriorityTier=1 State=UP\n"
    "PartitionName=urgent Nodes=n1,n2 MaxTime=INFINITE PriorityTier=9 State=UP\n"
)


def lacks() -> str | None:
    """Returns the reason why Slurm cannot run here, or None if it can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"Slurm is not installed: no {', '.join(missing)}"
    return None if os.geteuid() == 0 else "a private Slurm needs root: slurmd makes UTS namespaces"


def _path() -> str:
    return os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))


@dataclass
class Slurm:
    """A running Slurm; `environ` is the environment for its commands."""

    folder: Path
    environ: dict[str, str]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def command(self, *argv: str, cwd: Path | None = None, timeout_secs: float = 60.0) -> str:
        """Returns the output of a Slurm command, which must succeed."""
        done = subprocess.run(argv, env=self.environ, cwd=cwd, capture_output=True, text=True, timeout=timeout_secs)
        assert done.returncode == 0, (argv, done.stdout, done.stderr)
        return done.stdout.strip()

    def field(self, job: str, name: str) -> str:
        """Returns a field of `scontrol show job`, such as JobState, Restarts or ExitCode."""
        shown = dict(word.partition("=")[::2] for word in self.command("scontrol", "show", "job", "-o", job).split())
        return shown[name]

    def wait_for(self, job: str, *states: str, timeout_secs: float = 300.0) -> str:
        """Waits until a job is in one of these states; returns the state."""
        deadline = time.monotonic() + timeout_secs
        while (state := self.field(job, "JobState")) not in states:
            assert time.monotonic() < deadline, f"job {job} is {state}, expected {states}"
            time.sleep(0.2)
        return state

    def start(self, name: str, *argv: str) -> None:
        """Starts a daemon in the foreground; its output is in `name.log`."""
        with open(self.folder / f"{name}.log", "ab") as log:
            self.daemons[name] = subprocess.Popen(
                guarded(list(argv), signal.SIGKILL), env=self.environ, stdout=log, stderr=log, start_new_session=True
            )

    def start_node(self, name: str) -> None:
        """Starts the daemon of a node, in a UTS namespace with the node's name."""
        run = f"hostname {name} && exec slurmd -D -N {name}"
        self.start(name, "unshare", "--uts", "sh", "-c", run)

    def kill_node(self, name: str) -> None:
        """Kills the daemon of a node; its child processes live on."""
        self.daemons[name].kill()
        self.daemons.pop(name).wait()

    def process_on(self, node: str, word: str) -> int:
        """Returns the id of the process on a node that has this word in its command line."""
        names = self._namespace(self.daemons[node].pid)
        found = []
        for process in psutil.process_iter(["cmdline"]):
            with contextlib.suppress(OSError):  # gone meanwhile
                if word in (process.info["cmdline"] or ()) and self._namespace(process.pid) == names:
                    found.append(process.pid)
        assert len(found) == 1, (node, word, found)
        return found[0]

    @staticmethod
    def _namespace(pid: int) -> str:
        return os.readlink(f"/proc/{pid}/ns/uts")

    def wait_until_idle(self) -> None:
        """Waits until all nodes accept jobs."""
        deadline = time.monotonic() + START_SECS
        states: Sequence[str] = ()
        while not states or any(state != "idle" for state in states):
            assert time.monotonic() < deadline, (states, self.logs())
            time.sleep(0.1)
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                states = self.command("sinfo", "-h", "-N", "-p", "debug", "-o", "%T").split()

    def logs(self) -> str:
        """Returns the last lines of all daemons."""
        return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(self.folder.glob("*.log")))

    def stop(self) -> None:
        """Ends all jobs, then the daemons."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.command("scancel", "--signal=KILL", "--full", "--state=RUNNING")
            self.command("scancel", "--user=root")
            deadline = time.monotonic() + START_SECS
            while self.command("squeue", "-h") and time.monotonic() < deadline:
                time.sleep(0.2)
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


@contextlib.contextmanager
def slurm_of_two_nodes(folder: Path) -> Iterator[Slurm]:
    """Starts Slurm in an empty folder, and stops it at the end."""
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    nodes = "".join(NODE.format(name=name, host=host, port=pick_free_port()) for name in NODES)
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=host, ctld_port=pick_free_port(), folder=folder) + nodes + PARTITIONS)
    for name in GPU_FILES:
        (folder / name).touch()
    (folder / "gres.conf").write_text("".join(f"Name=gpu File={folder / name}\n" for name in GPU_FILES))
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    path = os.pathsep.join((str(Path(sys.executable).parent), _path()))
    slurm = Slurm(folder, {**os.environ, "SLURM_CONF": str(conf), "PATH": path})
    try:
        own = [f"--{what}={folder}/munge.{what[:3]}" for what in ("pid-file", "seed-file")]
        own += [f"--socket={folder}/munge.socket", f"--key-file={key}", f"--log-file={folder}/munged.log"]
        slurm.start("munged", "munged", "--foreground", "--force", *own)
        deadline = time.monotonic() + START_SECS
        while not (folder / "munge.socket").exists():
            assert time.monotonic() < deadline, slurm.logs()
            time.sleep(0.05)
        slurm.start("slurmctld", "slurmctld", "-D", "-i")
        for name in NODES:
            slurm.start_node(name)
        slurm.wait_until_idle()
        yield slurm
    finally:
        slurm.stop()


def start_now(slurm: Slurm, job: str) -> None:
    """Slurm lets a job that was requeued wait for two minutes, and refuses to start one at once."""
    slurm.wait_for(job, "PENDING", "RUNNING")
    if slurm.field(job, "JobState") == "PENDING":
        slurm.command("scontrol", "update", f"JobId={job}", "StartTime=now+5")


def wait(until: Callable[[], bool], what: Callable[[], str]) -> None:
    """Waits until something holds; `what` says, for the failure, how far it is."""
    deadline = time.monotonic() + WAIT_SECS
    while not until():
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)
