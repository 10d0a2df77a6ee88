"""Decides which process died first, so that those that merely followed are not blamed; pure, no process involved."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from parallax_runner.launch.control import wire
from parallax_runner.launch.launchers.launcher import RankExit
from parallax_runner.launch.watch.whereabouts import Whereabouts

# Deaths within this time of the first sign are one accident: grpc and Horovod tell the others within a second or two.
FOLLOW_SECS = 5.0
# What is said of a process of which nobody, the launcher included, has told anything.
DIED_SILENTLY = "died without a message"
# What is said of one that ran in a process which somebody else has started.
GONE = "its process was killed, or its machine is lost"
# How processes end that give up because a peer is gone; such a death need not come first.
_GIVES_UP_BY = frozenset({signal.SIGABRT, signal.SIGPIPE})
# How workers end that their launcher ends. Nobody ends a server so while it is not known who is to blame.
_TOLD_BY = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


@dataclass
class Member:
    """What the driver knows of one worker, one server, or the program that starts all workers (its name is the role).

    `lost_secs` is the monotonic time of the first sign that it ended before its time; `exit_status` is minus the
    signal number for a death by signal, None if unknown; it `is_gone` if it ran elsewhere, and nobody knows how it
    ended; `error` is what it said itself, and it `recurs` if it would
    come again in another attempt; `wanted_status` is what it wants the run to end with; `verdict` is what the driver
    concluded. The last six are what it told last.
    """

    role: str
    index: int
    host: str = ""
    said_hello: bool = False
    done: bool = False
    connected: bool = False
    lost_secs: float | None = None
    exit_status: int | None = None
    is_gone: bool = False
    error: str | None = None
    traceback: str = ""
    recurs: bool = False
    wanted_status: int | None = None
    verdict: str | None = None
    pid: int | None = None
    silent_secs: float = 0.0
    doing: str = wire.STARTING
    doing_secs: float | None = None
    step: int | None = None
    where: str | None = None
    inside: str | None = None

    def lose(self, secs: float) -> None:
        """Notes the first sign of its end; later ones do not count."""
        if self.lost_secs is None:
            self.lost_secs = secs

    def whereabouts(self) -> Whereabouts:
        """What it was at, as far as it has told."""
        where = f"ended: {self.error}" if self.where is None and self.error is not None else self.where
        return Whereabouts(self.role, self.index, self.host, self.doing, self.doing_secs, where, self.step, self.inside)


@dataclass(frozen=True)
class Failure:
    """The process that died first, why, and the end of what it said.

    `role` is worker or server; the name of the program that starts all workers, as mpirun, if it failed itself; driver
    if no free port could be had; run if no process is to blame alone. `exit_status` is minus the signal number for a
    death by signal. `others` are all that were not done, `step` the last step that any
    rank told of. Where it `recurs`, starting again would lead to the same end.
    """

    role: str
    index: int
    host: str
    reason: str
    last_lines: tuple[str, ...]
    pid: int | None = None
    exit_status: int | None = None
    recurs: bool = False
    wanted_status: int | None = None
    step: int | None = None
    others: tuple[Whereabouts, ...] = ()

    def __str__(self) -> str:
        if self.role == "run":
            return self.reason
        who = f"{self.role} {self.index}" if self.role in ("worker", "server") else self.role
        return f"{who} on {self.host}: {self.reason}" if self.host else f"{who}: {self.reason}"


def first_lost(members: Sequence[Member], rank_exit: RankExit | None) -> Member:
    """The lost member to blame; `rank_exit` is what the launcher says. Raises ValueError if none is lost.

    A process that a signal killed comes first, then the rank that the launcher names unless somebody explained himself
    before, then the first in time.
    """
    lost = [(member.lost_secs, member) for member in members if member.lost_secs is not None]
    lost.sort(key=lambda pair: pair[0])
    start_secs = lost[0][0] if lost else 0.0
    near = [member for secs, member in lost if secs <= start_secs + FOLLOW_SECS]
    if not near:
        raise ValueError("no member is lost")
    killed = [member for member in near if not _explained(member) and _killed_by_outsider(member)]
    if killed:
        return killed[0]
    named = [member for member in near if rank_exit and (member.role, member.index) == ("worker", rank_exit.rank)]
    return named[0] if named and not _explained(near[0]) else near[0]


def reason_of(member: Member) -> str:
    """Why a lost member ended, in words: its own if it said any."""
    if member.error is not None:
        return member.error
    if member.verdict is not None:
        return member.verdict
    status = member.exit_status
    if status is None:
        return DIED_SILENTLY
    if member.is_gone:
        return GONE
    if status < 0:
        hint = ": a file that it reads was truncated, or its disk failed" if -status == signal.SIGBUS else ""
        return f"killed by signal {-status} ({signal_name(-status)}){hint}"
    if status == 0:
        return "ended before its work was done (exit status 0)"
    return f"exit status {status}"


def signal_name(number: int) -> str:
    """ "SIGKILL" for 9; real-time signals, which have no name of their own, as "signal 40"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _explained(member: Member) -> bool:
    return member.error is not None or member.verdict is not None


def _killed_by_outsider(member: Member) -> bool:
    if member.is_gone:
        return True
    if member.exit_status is None or member.exit_status >= 0:
        return False
    follows = _GIVES_UP_BY if member.role == "server" else _GIVES_UP_BY | _TOLD_BY
    return -member.exit_status not in follows
