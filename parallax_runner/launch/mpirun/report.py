"""Finds out from mpirun's output which rank died first, and how. The patterns match the messages of Open MPI 5.0."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from parallax_runner.launch.launchers.launcher import RankExit

_SIGNAL = re.compile(r"noticed that process rank (\d+) with PID \d+ on node (\S+) exited on signal (\d+)")
_EXIT_CODE = re.compile(r"The first process to do so was: Process name: \[[^\]]*,(\d+)\] Exit code: (\d+)")
# mpirun prints this for a rank that called MPI_Init and exited with status 0 without calling MPI_Finalize.
_IMPROPER = re.compile(r"exited due to process rank (\d+) with PID \d+ on node \S+ exiting improperly")
_ABORT = re.compile(r"MPI_ABORT was invoked on rank (\d+) in communicator .*? Errorcode: (\d+)")
# A rank prints this, and then aborts, if the connection to another rank breaks.
_PEER = re.compile(r"MPI communication peer process has unexpectedly disconnected.*? Peer host: +(\S+)")
_TAG = re.compile(r"^\[\d+,(\d+)\]<std(?:out|err)>: ?(.*)$")
# A rank prints one of these if MPI_Init fails. The status with which the rank then exits has no meaning of its own.
_NO_MPI = (
    "An error occurred in MPI_Init",
    "MPI_INIT failed",
    "No components were able to be opened",
    "A requested component was not found",
)
# mpirun catches these signals and terminates its ranks without printing a message.
TOLD_TO_END = ", without a message: it may have received SIGTERM, SIGINT or SIGHUP"


def find_rank_exit(text: str) -> RankExit | None:
    """Returns the rank whose exit made mpirun terminate the other ranks, or None if mpirun names no rank."""
    own_lines = [line for line in text.splitlines() if not line_of_a_rank(line)]
    # mpirun wraps its messages at 78 columns.
    sentence = " ".join(" ".join(own_lines).split())
    if found := _SIGNAL.search(sentence):
        return RankExit(int(found[1]), -int(found[3]))
    if found := _EXIT_CODE.search(sentence) or _ABORT.search(sentence):
        return RankExit(int(found[1]), int(found[2]))
    if found := _IMPROPER.search(sentence):
        return RankExit(int(found[1]), 0)
    return None


def find_lost_peer(text: str) -> str | None:
    """Returns the host of the rank to which another rank has lost its connection, or None if no rank reports this."""
    lines = [found[2] if (found := _TAG.match(line)) else line for line in text.splitlines()]
    found = _PEER.search(" ".join(lines))
    return None if found is None else found[1]


def line_of_a_rank(line: str) -> bool:
    """Returns whether a rank wrote this line and mpirun only forwarded it."""
    return _TAG.match(line) is not None


def was_told_to_end(text: str, exit_status: int) -> bool:
    """Returns whether the output and the exit status of mpirun show that mpirun itself received a signal."""
    return exit_status == 1 and all(line_of_a_rank(line) for line in text.splitlines() if line.strip())


def mpi_failed_to_start(text: str) -> bool:
    """Returns whether a rank's output shows that MPI_Init failed."""
    return any(sign in text for sign in _NO_MPI)


def told_of_settings(settings: Sequence[str]) -> str:
    """Returns a sentence about the user's parameters with which MPI did not start."""
    lister = Path(sys.executable).parent / "ompi_info"
    return (
        f": MPI did not start. These settings choose parts of Open MPI: {', '.join(settings)}. If they were made for "
        f"another Open MPI, remove them; `{lister}` lists the parts that this one has"
    )


def lines_of_rank(text: str, rank: int) -> tuple[str, ...]:
    """Returns the lines that `rank` wrote to mpirun's output before it had its own log."""
    tagged = (_TAG.match(line) for line in text.splitlines())
    return tuple(found[2] for found in tagged if found and int(found[1]) == rank)
