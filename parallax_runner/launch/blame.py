"""Decides which process died first, so that those that merely followed are not blamed; pure, no process involved."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from parallax_runner.launch.mpirun_report import RankExit

# Deaths within this time of the first sign are one accident: grpc and Horovod tell the others within a second or two.
FOLLOW_SECS = 5.0
# How processes end that are told to, or that give up because a peer is gone; such a death need not come first.
_FOLLOWING_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGABRT, signal.SIGPIPE})


@dataclass
class Member:
    """What the driver knows of one worker, one server, or mpirun itself (role "mpirun", index 0).

    `lost_secs` is the monotonic time of the first sign that it ended before its time; `exit_status` is minus the
    signal number for a death by signal, None if unknown; `error` is what it said itself.
    """

    role: str
    index: int
    host: str = ""
    said_hello: bool = False
    done: bool = False
    connected: bool = False
    lost_secs: float | None = None
    exit_status: int | None = None
    error: str | None = None
    traceback: str = ""

    def lose(self, secs: float) -> None:
        """Notes the first sign of its end; later ones do not count."""
        if self.lost_secs is None:
            self.lost_secs = secs


@dataclass(frozen=True)
class Failure:
    """The process that died first, why, and the end of what it said.

    `role` is worker or server; mpirun if mpirun itself failed; driver if no free port could be had.
    """

    role: str
    index: int
    host: str
    reason: str
    last_lines: tuple[str, ...]

    def __str__(self) -> str:
        who = f"{self.role} {self.index}" if self.role in ("worker", "server") else self.role
        return f"{who} on {self.host}: {self.reason}" if self.host else f"{who}: {self.reason}"


def first_lost(members: Sequence[Member], rank_exit: RankExit | None) -> Member:
    """The lost member to blame; `rank_exit` is mpirun's opinion. Raises ValueError if none is lost.

    A process that a signal killed comes first, then the rank mpirun names unless somebody explained himself before,
    then the first in time.
    """
    lost = [(member.lost_secs, member) for member in members if member.lost_secs is not None]
    lost.sort(key=lambda pair: pair[0])
    start_secs = lost[0][0] if lost else 0.0
    near = [member for secs, member in lost if secs <= start_secs + FOLLOW_SECS]
    if not near:
        raise ValueError("no member is lost")
    killed = [member for member in near if member.error is None and _killed_by_outsider(member.exit_status)]
    if killed:
        return killed[0]
    named = [member for member in near if rank_exit and (member.role, member.index) == ("worker", rank_exit.rank)]
    return named[0] if named and near[0].error is None else near[0]


def reason_of(member: Member) -> str:
    """Why a lost member ended, in words: its own if it said any."""
    if member.error is not None:
        return member.error
    status = member.exit_status
    if status is None:
        return "died without a message"
    if status < 0:
        return f"killed by signal {-status} ({signal_name(-status)})"
    if status == 0:
        return "ended before its work was done (exit status 0)"
    return f"exit status {status}"


def signal_name(number: int) -> str:
    """ "SIGKILL" for 9; real-time signals, which have no name of their own, as "signal 40"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _killed_by_outsider(exit_status: int | None) -> bool:
    return exit_status is not None and exit_status < 0 and -exit_status not in _FOLLOWING_SIGNALS
