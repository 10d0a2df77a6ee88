"""Starts the peers on the hosts of a benchmark. Each peer is a module in `benchmarks/peers/`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.hosts.cluster import Cluster, guarded, python
from benchmarks.overlap import Told
from benchmarks.runs import RunFailed, Watched

FINISHED = re.compile(r"^finished: (\{.*\})$", re.MULTILINE)
Command = tuple[list[str], Mapping[str, str]]  # the command and its environment variables


class Peer:
    """A module in `benchmarks/peers/` with its options."""

    def __init__(self, module: str, *options: str) -> None:
        self._module, self._options = f"benchmarks.peers.{module}", options

    def commands(self, cluster: Cluster, common: Sequence[str], folder: Path, stack: ExitStack) -> list[Command]:
        """Returns the commands that report their steps. Also starts the other processes that these commands need, and
        ends those processes when the stack closes."""
        raise NotImplementedError

    def _argv(self, *arguments: str) -> list[str]:
        return python(self._module, *self._options, *arguments)


class ByMpirun(Peer):
    """A peer that mpirun starts once on each host."""

    def commands(self, cluster: Cluster, common: Sequence[str], folder: Path, stack: ExitStack) -> list[Command]:
        return [cluster.mpirun(self._argv(*common))]


class Alone(Peer):
    """A peer that runs one independent process per host, all on this machine's own network."""

    def commands(self, cluster: Cluster, common: Sequence[str], folder: Path, stack: ExitStack) -> list[Command]:
        return [(Cluster(cluster.count).on(0, self._argv(*common)), {})] * cluster.count


@dataclass(frozen=True)
class Job:
    """A process of a TensorFlow cluster."""

    name: str
    index: int


class ByTensorflow(Peer):
    """A peer that runs a process for each of `jobs` on each host. TensorFlow's servers connect the processes, and the
    job `first` on the first host reports the steps."""

    def __init__(self, module: str, *options: str, jobs: Sequence[str], first: str = "worker") -> None:
        super().__init__(module, *options)
        self._jobs, self._first = jobs, Job(first, 0)

    def commands(self, cluster: Cluster, common: Sequence[str], folder: Path, stack: ExitStack) -> list[Command]:
        workers, servers = cluster.addresses()
        listed = ["--workers", ",".join(workers), "--servers", ",".join(servers), *common]

        def command(job: Job) -> list[str]:
            return cluster.on(job.index, self._argv("--job", job.name, "--index", str(job.index), *listed))

        for job in (Job(name, index) for name in self._jobs for index in range(cluster.count)):
            if job != self._first:
                _start(command(job), folder / f"{job.name}_{job.index}.log", stack)
        return [(command(self._first), {})]


PEERS: dict[str, Peer] = {
    "horovod": ByMpirun("horovod_allreduce"),
    "horovod_dense": ByMpirun("horovod_allreduce", "--sparse-as-dense"),
    "horovod_grouped": ByMpirun("horovod_allreduce", "--grouped"),
    "tensorflow_ps": ByTensorflow("tensorflow_ps", jobs=("ps", "worker")),
    "tensorflow_ps_plain": ByTensorflow("tensorflow_ps", "--plain", jobs=("ps", "worker")),
    "keras_horovod": ByMpirun("keras_horovod"),
    "keras_horovod_dense": ByMpirun("keras_horovod", "--sparse-as-dense"),
    "keras_multi_worker": ByTensorflow("keras_multi_worker", jobs=("worker",)),
    "keras_parameter_server": ByTensorflow("keras_parameter_server", jobs=("ps", "worker"), first="chief"),
    "keras_fit": Alone("keras_fit"),
}


def run_peer(
    mode: str, cluster: Cluster, common: Sequence[str], folder: Path, on_told: Callable[[Told], None]
) -> dict[str, Any]:
    """Runs a peer. Returns its reported results and the times of its progress reports. Raises RunFailed."""
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        commands = PEERS[mode].commands(cluster, common, folder, stack)
        watched = [
            stack.enter_context(
                Watched(
                    folder / str(number) if len(commands) > 1 else folder,
                    guarded(argv, signal.SIGTERM),  # mpirun then ends its ranks
                    cwd=machine.ROOT,
                    env=env,
                    on_told=on_told if number == 0 else None,
                )
            )
            for number, (argv, env) in enumerate(commands)
        ]
        for one in watched:
            one.wait_until_ended()
    said = FINISHED.search(watched[0].said())
    if said is None:
        raise RunFailed(f"{' '.join(watched[0].argv)}\ndid not report its results:\n{watched[0].said()[-4000:]}")
    return json.loads(said[1]) | {"told": [one.told for one in watched]}


def _start(argv: Sequence[str], log: Path, stack: ExitStack) -> None:
    """Starts a process, which is killed when the stack closes."""
    output = stack.enter_context(log.open("wb"))
    process = subprocess.Popen(
        guarded(argv, signal.SIGKILL),
        cwd=machine.ROOT,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )
    stack.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
