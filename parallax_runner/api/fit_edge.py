"""The boundary between the user's code and `fit`: what the user's process keeps, and which errors leave `fit`."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from parallax_runner.api.one_run import only_one_run
from parallax_runner.driver.ended import RunEnded
from parallax_runner.errors import FitError, ParallaxError
from parallax_runner.process.changes import undone
from parallax_runner.process.uncaught import show_if_uncaught
from parallax_runner.process.user_code import has_users_frames, place_of_call, without_own_frames
from parallax_runner.worker.script import this_worker

Given = ParamSpec("Given")
Result = TypeVar("Result")
SIGNAL_STATUS = 128  # a run that a signal stopped has this exit status plus the number of the signal


def in_users_process(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorates `fit`, which runs as a guest in the user's process. A worker calls the function itself.

    Raises FitError if the run has failed or was stopped, and LaunchError if the process already has a run. Errors of
    this project have no frames of this project in their tracebacks. After the call, the loggers, streams and
    environment variables of the process are as before.
    """

    @functools.wraps(function)
    def call(*args: Given.args, **given: Given.kwargs) -> Result:
        __tracebackhide__ = True  # for pytest
        if this_worker() is not None:
            return function(*args, **given)
        result, error = _outcome(lambda: function(*args, **given))
        if error is None:
            return result
        try:
            raise error
        finally:
            # The traceback of the error contains this frame. Without a cycle, an error that is caught is freed at once.
            del error

    return call


def _outcome(run: Callable[[], Any]) -> tuple[Any, ParallaxError | None]:
    """Returns the result of `run`, or the error to raise in the user's code. The error is returned, because an error
    that is raised within an `except` block would keep the other error as its context."""
    error: ParallaxError
    try:
        with only_one_run("fit"), undone():
            return run(), None
    except RunEnded as end:
        error = _fit_error(end)
        show_if_uncaught(error, is_shown=True)
    except ParallaxError as refusal:
        _shorten(refusal)
        error = refusal
        show_if_uncaught(error)
    error.called_at = place_of_call()
    return None, error


def _shorten(error: BaseException) -> None:
    """Removes the frames of this project from the traceback of an error and of its causes, and removes causes that have
    no line of the user's code."""
    error.__traceback__ = without_own_frames(error.__traceback__)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is None:
        return
    _shorten(cause)
    if cause.__cause__ is None and not has_users_frames(cause.__traceback__):
        error.__cause__ = None


def _fit_error(end: RunEnded) -> FitError:
    summary, run_dir = end.summary, str(end.run_dir)
    if summary.status != "interrupted":
        told = f"{summary.error or 'the run has failed'}; logs: {end.run_dir / 'logs'}"
    elif summary.ckpt_path is None:
        told = f"{_signal_name(end.exit_status)} stopped the run in {run_dir} before its first checkpoint"
    else:
        told = (
            f"{_signal_name(end.exit_status)} stopped the run; its newest checkpoint is {summary.ckpt_path}; to "
            f"continue the run, call fit with run_dir={run_dir} in overrides"
        )
    return FitError(
        told,
        exit_status=end.exit_status,
        status="interrupted" if summary.status == "interrupted" else "failed",
        run_dir=run_dir,
        ckpt_path=summary.ckpt_path,
    )


def _signal_name(exit_status: int) -> str:
    return signal.Signals(exit_status - SIGNAL_STATUS).name
