"""Decides which process died first, so that processes that died as a consequence are not blamed. This module has no
side effects."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from parallax_runner.collectives.backend import NOTHING_AWAITED, Awaited
from parallax_runner.errors import ErrorParts
from parallax_runner.launch.control import wire
from parallax_runner.launch.control.activity import STARTING, Activity
from parallax_runner.launch.launchers.launcher import RankExit
from parallax_runner.launch.watch.whereabouts import Place, Whereabouts

# All deaths within this time after the first sign of a failure are attributed to one cause. When a process dies, grpc
# and the collectives notify the other processes within a second or two.
FOLLOW_SECS = 5.0
# The reason given if neither the process nor the launcher reported anything.
DIED_SILENTLY = "died without a message"
# The reason given for a member whose process the driver did not start itself.
GONE = "its process was killed, or the connection to its machine is lost"
# If a process aborts because a peer is gone, it is killed by one of these signals. Such a death may be a consequence of
# another death.
_GIVES_UP_BY = frozenset({signal.SIGABRT, signal.SIGPIPE})
# The signals that a launcher uses to terminate workers. No launcher sends them to servers before the process to blame
# is known.
_TOLD_BY = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


@dataclass
class Member:
    """The state that the driver keeps for one worker, one server, or the program that starts all workers. For that
    program, the role is the program's name.

    `lost_secs` is the monotonic time of the first sign that the member ended prematurely. `exit_status` is the negative
    signal number if a signal killed the member, and None if unknown. `is_gone` is set if the member ran on another
    machine and how it ended is unknown. `error` is the error that the process itself reported, `parts` are its parts if
    it is an error of this package, and `recurs` means that the error would occur again in another attempt.
    `wanted_status` is the exit status that the process requests for the run. `verdict` is the driver's conclusion. The
    fields from `doing` onwards come from the last report of the process. `awaited` tells which ranks an exchange of the
    process has waited for during a long time. `memory_kills` is how many processes the kernel of its host had ended for
    lack of memory when the process said hello, and `peak_bytes` is the peak of its memory at its last report.
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
    parts: ErrorParts | None = None
    traceback: str = ""
    recurs: bool = False
    wanted_status: int | None = None
    verdict: str | None = None
    pid: int | None = None
    silent_secs: float = 0.0
    doing: Activity = STARTING
    doing_secs: float | None = None
    step: int | None = None
    awaited: Awaited = NOTHING_AWAITED
    where: Place | None = None
    inside: str | None = None
    memory_kills: int | None = None
    peak_bytes: int | None = None

    def lose(self, secs: float) -> None:
        """Records the time of the first sign that the member ended prematurely. Later signs are ignored."""
        if self.lost_secs is None:
            self.lost_secs = secs

    def whereabouts(self) -> Whereabouts:
        """Returns what the process was doing, according to its last report."""
        is_ended = self.where is None and self.error is not None
        where = Place(f"ended: {self.error}") if is_ended else self.where
        return Whereabouts(self.role, self.index, self.host, self.doing, self.doing_secs, where, self.step, self.inside)


@dataclass(frozen=True)
class Failure:
    """The process that died first, the reason for its death, and the last lines of its output.

    `role` is "worker", "server" or one of three other values: the name of the program that starts all workers, such as
    "mpirun", if that program failed; "driver" if there was no free port; "run" if no single process is to blame.
    `exit_status` is the negative signal number if a signal killed the process. `others` are the other processes that
    had not finished. `step` is the last step that any rank reported. `recurs` means that another attempt would fail in
    the same way. `parts` are the parts of the reason if the process reported an error of this package.
    """

    role: str
    index: int
    host: str
    reason: str
    last_lines: tuple[str, ...]
    pid: int | None = None
    exit_status: int | None = None
    recurs: bool = False
    parts: ErrorParts | None = None
    wanted_status: int | None = None
    step: int | None = None
    others: tuple[Whereabouts, ...] = ()
    is_leaving: bool = False

    def __str__(self) -> str:
        if self.role == "run":
            return self.reason
        who = f"{self.role} {self.index}" if self.role in ("worker", "server") else self.role
        return f"{who} on {self.host}: {self.reason}" if self.host else f"{who}: {self.reason}"


def first_lost(members: Sequence[Member], rank_exit: RankExit | None) -> Member:
    """Returns the lost member to blame. `rank_exit` is the rank that the launcher reports as the first to die, or None.
    Raises ValueError if no member is lost.

    A process that was killed by a signal is blamed first. If no process was killed by a signal, the rank that the
    launcher names is blamed, unless the driver knows why the first lost member ended. In all other cases, the first
    lost member is blamed.
    """
    near = _lost_together(members)
    if not near:
        raise ValueError("no member is lost")
    first = near[0]
    killed = [member for member in near if not _explained(member) and _killed_by_outsider(member)]
    if killed:
        return killed[0]
    if rank_exit is None or _explained(first):
        return first
    named = ("worker", rank_exit.rank)
    return next((member for member in near if (member.role, member.index) == named), first)


def _lost_together(members: Sequence[Member]) -> list[Member]:
    """Returns the members that were lost first, or within FOLLOW_SECS after the first loss, in the order of their
    losses."""
    lost = [(member.lost_secs, member) for member in members if member.lost_secs is not None]
    lost.sort(key=lambda pair: pair[0])
    if not lost:
        return []
    latest_secs = lost[0][0] + FOLLOW_SECS
    return [member for secs, member in lost if secs <= latest_secs]


def reason_of(member: Member) -> str:
    """Returns why a lost member ended: the error that the member reported, if it reported one."""
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
        hint = ": a file that it was reading was truncated, or a disk failed" if -status == signal.SIGBUS else ""
        return f"killed by signal {-status} ({signal_name(-status)}){hint}"
    if status == 0:
        return "ended before its work was done (exit status 0)"
    if status == wire.CUT_OFF_STATUS:
        return "its connection to the driver broke, because the network between the two machines failed"
    return f"exit status {status}"


def signal_name(number: int) -> str:
    """Returns the name of a signal, for example "SIGKILL" for 9. For a real-time signal, which has no name, returns
    text such as "signal 40"."""
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
