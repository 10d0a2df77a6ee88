"""Runs a LaunchSpec to completion: starts the processes, watches them, and leaves no process behind."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from parallax_runner.errors import LaunchError
from parallax_runner.launch.attempt import Attempt
from parallax_runner.launch.blame.first_death import Failure
from parallax_runner.launch.control.wire import Answer, Message
from parallax_runner.launch.interrupts import Interrupts
from parallax_runner.launch.job import LaunchSpec
from parallax_runner.launch.launchers.launcher import Leaving
from parallax_runner.launch.watch.waiting import StopNotice
from parallax_runner.launch.watch.whereabouts import describe

__all__ = ["Failure", "LaunchSpec", "Message", "RunResult", "run"]

log = logging.getLogger(__name__)

OnMessage = Callable[[Message], Mapping[str, Any] | Answer | None]

# The maximum number of attempts. An attempt is repeated if another program takes a chosen port before the run uses it.
MAX_ATTEMPTS = 5
# After the first sign of a failure, the other processes have this long to exit on their own and to report why.
SETTLE_SECS = 2.0
# How much longer the driver waits if it does not yet know how the first process ended. mpirun reports this only when
# mpirun itself exits, which can be late on a busy machine.
EXPLAIN_SECS = 8.0
# After the last worker is done, the servers and the Python interpreters have this long to shut down.
CLOSE_SECS = 10.0
# A shutdown that takes longer than this is reported.
TELL_CLOSE_SECS = 1.0
# If a signal reaches the driver within this time after a worker's death, a batch system is assumed to have sent it to
# all processes at once.
SIGNALLED_TOGETHER_SECS = 1.0
# How long the workers have to save and to end, if more workers are to start.
RESIZE_SECS = 600.0
LEAVES = "it must end, because its machine is taken away"


@dataclass(frozen=True)
class RunResult:
    """How a run ended. `done` maps (role, index) to the fields of the last message of that process. `resizes` is set if
    it ended early, so that more workers can start."""

    status: Literal["finished", "failed", "interrupted"]
    exit_status: int
    failure: Failure | None = None
    done: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    resizes: bool = False


def run(
    spec: LaunchSpec,
    *,
    on_message: OnMessage,
    on_tick: Callable[[], None] | None = None,
    on_stall: Callable[[str], None] | None = None,
    interrupts: Interrupts | None = None,
) -> RunResult:
    """Runs all processes of `spec` until they are done, one of them dies, or SIGINT, SIGTERM or SIGHUP arrives.

    `on_message` receives the messages hello, alive, done and fail, and every report, in order of arrival. A mapping
    that `on_message` returns is sent to all workers as a command, and an Answer to one worker. `on_tick` is called
    about ten times a second. `on_stall` receives a sentence if no step finishes for a long time. No process is left
    behind, even if one of these callbacks raises an exception. `interrupts` can be a context that the caller has
    already entered. Raises LaunchError if a command cannot be executed, here or on one of the hosts.
    """
    if interrupts is None:
        with Interrupts() as own:
            return run(spec, on_message=on_message, on_tick=on_tick, on_stall=on_stall, interrupts=own)
    with interrupts.supervised():
        spec.launcher.check(spec.shared, lambda: interrupts.received)
        result = _attempt(spec, interrupts, on_message, on_tick, on_stall)
        if interrupts.received and result.status == "finished":
            # The signal arrived too late to change the result, but its sender expects the exit status for that signal.
            return replace(result, status="interrupted", exit_status=interrupts.exit_status)
    return result


def _attempt(
    spec: LaunchSpec,
    interrupts: Interrupts,
    on_message: OnMessage,
    on_tick: Callable[[], None] | None,
    on_stall: Callable[[str], None] | None,
) -> RunResult:
    taken = ""
    for number in range(1, MAX_ATTEMPTS + 1):
        with Attempt(spec, on_message=on_message, on_tick=on_tick, in_hurry=lambda: interrupts.again) as attempt:
            result = _supervise(attempt, interrupts, spec.grace_secs, on_stall)
        if result is not None:
            return result
        taken = str(attempt.taken_address)
        log.warning("attempt %d of %d: %s was taken by another program", number, MAX_ATTEMPTS, taken)
    reason = f"another program took a newly chosen port in each of {MAX_ATTEMPTS} attempts, most recently {taken}"
    return RunResult("failed", LaunchError.exit_status, Failure("driver", 0, spec.launcher.address, reason, ()))


def _supervise(
    attempt: Attempt, interrupts: Interrupts, grace_secs: float, on_stall: Callable[[str], None] | None
) -> RunResult | None:
    """Returns the result of one attempt, or None if it ended because a port was taken."""
    if interrupts.received:
        return _interrupted(attempt, interrupts)
    attempt.start()
    while not _is_over(attempt, interrupts):
        attempt.pump(lambda: _is_over(attempt, interrupts) or attempt.has_stall_news())
        if not _is_over(attempt, interrupts):
            _tell_stall(attempt, on_stall)
    if attempt.workers_done():
        return _close(attempt, interrupts)
    if interrupts.received:
        return _interrupt(attempt, interrupts, grace_secs)
    if attempt.taken_address is not None:
        return None
    leaving = attempt.leaving()
    if leaving is not None and attempt.first_lost_secs() is None:
        return _leave(attempt, interrupts, leaving)
    if attempt.first_lost_secs() is None:
        return _end_early(attempt, interrupts)
    return _settle(attempt, interrupts)


def _is_over(attempt: Attempt, interrupts: Interrupts) -> bool:
    return (
        interrupts.received
        or attempt.taken_address is not None
        or attempt.workers_done()
        or attempt.first_lost_secs() is not None
        or attempt.leaving() is not None
        or attempt.ends_early()
    )


def _tell_stall(attempt: Attempt, on_stall: Callable[[str], None] | None) -> None:
    news = attempt.stall_news()
    # A stall that ends the attempt is not reported here, but as the failure of the attempt.
    if news is not None and attempt.first_lost_secs() is None:
        log.warning("%s", news)
        if on_stall is not None:
            on_stall(news)


def _close(attempt: Attempt, interrupts: Interrupts) -> RunResult:
    attempt.stop_servers()
    if not attempt.pump(lambda: attempt.all_exited() or interrupts.received, CLOSE_SECS):
        unfinished = attempt.unfinished()
        log.warning(
            "killed because it was still running %.0f s after the work was done: %s; see the logs",
            CLOSE_SECS,
            unfinished,
        )
    return RunResult("finished", 0, done=attempt.done)


def _settle(attempt: Attempt, interrupts: Interrupts) -> RunResult:
    # Ask the other processes at once, because mpirun terminates the other ranks half a second after the first exits.
    attempt.ask_where()
    attempt.pump(lambda: attempt.all_exited() or attempt.any_frozen() or interrupts.received, SETTLE_SECS)
    attempt.pump(lambda: not attempt.unexplained() or interrupts.received, EXPLAIN_SECS)
    lost_secs = attempt.first_lost_secs()
    if interrupts.received and lost_secs is not None and interrupts.first_secs < lost_secs + SIGNALLED_TOGETHER_SECS:
        return _interrupted(attempt, interrupts)
    attempt.note_unreported_exits()
    failure = attempt.first_failure()
    log.error("%s", failure)
    for line in (*failure.last_lines, *describe(failure.others)):
        log.info("    %s", line)
    return RunResult("failed", failure.wanted_status or LaunchError.exit_status, failure, attempt.done)


def _leave(attempt: Attempt, interrupts: Interrupts, leaving: Leaving) -> RunResult:
    """Lets the workers save and end, because one process must end."""
    failure = Failure(leaving.role, leaving.index, leaving.host, LEAVES, (), is_leaving=True)
    log.warning("%s: the workers have at most %.0f s to save and to end", failure, leaving.secs)
    attempt.stop_workers()
    attempt.pump(lambda: attempt.workers_done() or attempt.workers_exited() or interrupts.again, leaving.secs)
    attempt.stop_servers()
    if interrupts.received:
        return _interrupted(attempt, interrupts)
    return RunResult("failed", LaunchError.exit_status, failure, attempt.done)


def _end_early(attempt: Attempt, interrupts: Interrupts) -> RunResult:
    """Lets the workers save and end, because more workers can start."""
    attempt.stop_workers()
    attempt.pump(
        lambda: attempt.workers_done() or attempt.first_lost_secs() is not None or interrupts.received, RESIZE_SECS
    )
    if interrupts.received:
        return _interrupted(attempt, interrupts)
    if not attempt.workers_done():
        return _settle(attempt, interrupts)
    attempt.stop_servers()
    attempt.pump(lambda: attempt.all_exited() or interrupts.received, CLOSE_SECS)
    return RunResult("failed", LaunchError.exit_status, done=attempt.done, resizes=True)


def _interrupt(attempt: Attempt, interrupts: Interrupts, grace_secs: float) -> RunResult:
    name = interrupts.signal_name
    log.warning(
        "%s: stopping; the workers have at most %.0f s to exit, and a second signal kills them", name, grace_secs
    )
    notice = StopNotice(name)

    def workers_ended() -> bool:
        ended = attempt.workers_done() or attempt.workers_exited() or interrupts.again
        if not ended:
            notice.show(attempt.waiting_for())
        return ended

    def all_ended() -> bool:
        ended = attempt.all_exited() or interrupts.again
        if not ended and time.monotonic() > done_secs + TELL_CLOSE_SECS:
            notice.show(f"{attempt.unfinished()} to end")
        return ended

    attempt.stop_workers()
    # The heartbeats also report what the workers are doing, but only every few seconds.
    attempt.ask_where()
    attempt.pump(workers_ended, grace_secs)
    attempt.stop_servers()
    done_secs = time.monotonic()
    if attempt.workers_done():
        attempt.pump(all_ended, CLOSE_SECS)
    return _interrupted(attempt, interrupts)


def _interrupted(attempt: Attempt, interrupts: Interrupts) -> RunResult:
    return RunResult("interrupted", interrupts.exit_status, done=attempt.done)
