"""What to say of a failed attempt: who is to blame, its last words, and where the others stood."""

import socket
import time
from collections.abc import Sequence
from pathlib import Path

from parallax_runner.launch.blame.first_death import Failure, Member, first_lost, reason_of
from parallax_runner.launch.blame.mpirun_report import find_rank_exit, line_of_a_rank, lines_of_rank
from parallax_runner.launch.logs import last_lines, log_path

LAST_LINES = 20
# Of a traceback more is shown: where TensorFlow's own calls stand last, the user's line is further up.
TRACEBACK_LINES = 100
# mpirun catches these signals, ends its ranks and says nothing.
TOLD_TO_END = ", without a message, as when it gets SIGTERM, SIGINT or SIGHUP"


class Logs:
    """The logs of one attempt: those of an earlier one in the same folder end where this one's begin."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._starts = {path: path.stat().st_size for path in (run_dir / "logs").glob("*.log")}

    def tail(self, role: str, index: int, n: int = LAST_LINES) -> tuple[str, ...]:
        """The last lines that a process has written in this attempt."""
        path = log_path(self._run_dir, role, index)
        # mpirun's is written anew for each attempt.
        return last_lines(path, n, start=0 if role == "mpirun" else self._starts.get(path, 0))


def find_failure(
    workers: Sequence[Member], servers: Sequence[Member], mpirun: Member | None, run: Member, logs: Logs
) -> Failure:
    """The failure of an attempt in which at least one member is lost; `mpirun` is None where none was used. `run` is
    lost where no process is to blame alone."""
    mpirun_text = "\n".join(logs.tail("mpirun", 0, 1000)) if mpirun is not None else ""
    rank_exit = find_rank_exit(mpirun_text)
    if rank_exit is not None and rank_exit.rank < len(workers):
        named = workers[rank_exit.rank]
        named.exit_status = rank_exit.exit_status
        named.lose(time.monotonic())
    everyone = [*workers, *servers]
    member = first_lost([*everyone, *([mpirun] if mpirun else []), run], rank_exit)
    if mpirun is not None and mpirun.exit_status and member.role == "worker" and _explains_nothing(member):
        member = mpirun
    return Failure(
        member.role,
        member.index,
        member.host,
        reason_of(member) + (TOLD_TO_END if member is mpirun and _says_nothing(member, mpirun_text) else ""),
        _last_words(member, logs, mpirun_text),
        pid=member.pid,
        exit_status=member.exit_status,
        recurs=member.recurs,
        wanted_status=member.wanted_status,
        step=max((one.step for one in workers if one.step is not None), default=None),
        others=tuple(one.whereabouts() for one in everyone if one is not member and not one.done),
    )


def note_quiet_exits(workers: Sequence[Member]) -> None:
    """For when mpirun goes on although ranks are gone: after every end but that with status 0 it ends the others. Only
    for ranks of this machine, of which mpirun knows at once."""
    for member in workers:
        is_gone = member.lost_secs is not None and not member.connected and member.said_hello
        if is_gone and _explains_nothing(member) and member.host == socket.gethostname():
            member.exit_status = 0


def _says_nothing(mpirun: Member, text: str) -> bool:
    return mpirun.exit_status == 1 and all(line_of_a_rank(line) for line in text.splitlines() if line.strip())


def _explains_nothing(member: Member) -> bool:
    return member.error is None and member.exit_status is None and member.verdict is None


def _last_words(member: Member, logs: Logs, mpirun_text: str) -> tuple[str, ...]:
    if member.role == "mpirun":
        return tuple(mpirun_text.splitlines()[-LAST_LINES:])
    if member.role == "run":
        return ()
    own = tuple(member.traceback.splitlines()[-TRACEBACK_LINES:]) or logs.tail(member.role, member.index)
    return own if own or member.role != "worker" else lines_of_rank(mpirun_text, member.index, LAST_LINES)
