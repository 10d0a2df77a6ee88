"""Describes a failed attempt: which process is to blame, its last output, and what the other processes were doing."""

import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from parallax_runner.launch.blame.first_death import GONE, Failure, Member, first_lost, reason_of
from parallax_runner.launch.launchers.launcher import Launcher
from parallax_runner.launch.logs import last_lines, log_path
from parallax_runner.process.limits import limit_in, tight_limit

LAST_LINES = 20
# More lines are shown for a traceback, because its last lines may be TensorFlow's own calls, with the user's line
# further up.
TRACEBACK_LINES = 100
# The number of lines that are read from the output of the program that starts all workers.
OUTPUT_LINES = 1000


class Logs:
    """The logs of one attempt. The log files may also contain the output of earlier attempts, which this class
    skips."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._starts = {path: path.stat().st_size for path in (run_dir / "logs").glob("*.log")}

    def tail(self, role: str, index: int, n: int = LAST_LINES) -> tuple[str, ...]:
        """Returns the last lines that a process wrote in this attempt."""
        path = log_path(self._run_dir, role, index)
        # The log of the program that starts all workers is overwritten in each attempt.
        return last_lines(path, n, start=self._starts.get(path, 0) if role in ("worker", "server") else 0)


def find_failure(
    workers: Sequence[Member],
    servers: Sequence[Member],
    program: Member | None,
    run: Member,
    logs: Logs,
    launcher: Launcher,
) -> Failure:
    """Returns the failure of an attempt that has lost at least one member. `program` is the program that started all
    workers, or None if each worker was started separately. If no single process is to blame, the lost member is
    `run`."""
    output = "" if program is None else "\n".join(logs.tail(program.role, 0, OUTPUT_LINES))
    member = _blamed(workers, servers, program, run, output, launcher)
    last_words = _last_words(member, logs, output, launcher)
    hint = _hint(member, workers, program, "\n".join((output, *last_words)), launcher)
    others = [one for one in (*workers, *servers) if one is not member and not one.done]
    return Failure(
        member.role,
        member.index,
        member.host,
        reason_of(member) + (hint or _limit_hint(member, _output(member, logs, output, launcher))),
        last_words,
        pid=member.pid,
        exit_status=member.exit_status,
        recurs=member.recurs,
        parts=member.parts,
        wanted_status=member.wanted_status,
        step=max((one.step for one in workers if one.step is not None), default=None),
        others=tuple(one.whereabouts() for one in others),
    )


def _blamed(
    workers: Sequence[Member],
    servers: Sequence[Member],
    program: Member | None,
    run: Member,
    output: str,
    launcher: Launcher,
) -> Member:
    """Returns the member to blame. The arguments are those of `find_failure`, and `output` is the program's output."""
    rank_exit = launcher.rank_exit(output)
    if rank_exit is not None and rank_exit.rank < len(workers):
        named = workers[rank_exit.rank]
        named.exit_status = rank_exit.exit_status
        named.lose(time.monotonic())
    programs = [] if program is None else [program]
    member = first_lost([*workers, *servers, *programs, run], rank_exit)
    if program is None or not program.exit_status:
        return member
    if member.role == "worker" and _explains_nothing(member):
        return _gone_peer(workers, launcher.lost_peer(output)) or program
    return member


def _hint(member: Member, workers: Sequence[Member], program: Member | None, output: str, launcher: Launcher) -> str:
    """Returns what the launcher adds to the reason for the death of `member`."""
    if member is program and (hint := launcher.hint(output, member.exit_status or 0)):
        return hint
    is_explained = member.error is not None or member.verdict is not None
    if is_explained or (member is not program and member.role != "worker"):
        return ""
    return launcher.start_hint(output, any_started=any(one.said_hello for one in workers))


def note_unreported_exits(workers: Sequence[Member], exit_status: int) -> None:
    """Sets the exit status of workers that have exited although the program that started them continues. The program
    continues only if a worker exits with the status `exit_status`. The status is set only for workers on this machine,
    because the program notices at once when these workers exit."""
    for member in workers:
        is_gone = member.lost_secs is not None and not member.connected and member.said_hello
        if is_gone and _explains_nothing(member) and member.host == socket.gethostname():
            member.exit_status = exit_status


def _gone_peer(workers: Sequence[Member], host: str | None) -> Member | None:
    """Returns the worker on `host` that ended without a message, or None. The workers that have lost their connection
    to it aborted, and made mpirun fail."""
    found = next((one for one in workers if one.host == host and one.lost_secs and _explains_nothing(one)), None)
    if found is not None:
        found.verdict, found.is_gone = GONE, True
    return found


def _explains_nothing(member: Member) -> bool:
    return member.error is None and member.exit_status is None and member.verdict is None


def _limit_hint(member: Member, said: Sequence[str]) -> str:
    """Returns text that names the limit (`ulimit`) that has ended a process of this host, or may have ended it. `said`
    are lines that the process wrote."""
    is_explained = member.error is not None or member.verdict is not None
    if is_explained or member.host not in ("", socket.gethostname()):
        return ""
    if (sentence := limit_in("\n".join((reason_of(member), *said)))) is not None:
        return f"; {sentence}"
    has_failed = member.exit_status not in (None, -signal.SIGKILL, -signal.SIGTERM)
    possible = tight_limit() if has_failed else None
    return "" if possible is None else f"; a possible cause is a limit: {possible}"


def _last_words(member: Member, logs: Logs, output: str, launcher: Launcher) -> tuple[str, ...]:
    trace = tuple(member.traceback.splitlines()[-TRACEBACK_LINES:])
    return trace or _output(member, logs, output, launcher)[-LAST_LINES:]


def _output(member: Member, logs: Logs, output: str, launcher: Launcher) -> tuple[str, ...]:
    """Returns the last lines that a process wrote itself, with the stack of a crash in native code."""
    if member.role == launcher.program:
        return tuple(output.splitlines())
    if member.role == "run":
        return ()
    own = logs.tail(member.role, member.index, TRACEBACK_LINES)
    return own if own or member.role != "worker" else launcher.lines_of_rank(output, member.index)
