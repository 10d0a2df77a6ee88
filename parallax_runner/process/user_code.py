"""Protects a run from user code that would end it with an exception that is not an error, such as SystemExit."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from parallax_runner.errors import Interrupted, ParallaxError, Setting

_PROJECT = str(Path(__file__).parents[1])
_NOT_THE_USERS = ("site-packages", "dist-packages", "<frozen ", sysconfig.get_path("stdlib"), _PROJECT)
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@contextmanager
def must_not_exit(what: str, error_type: type[ParallaxError], *, about: Sequence[Setting] = ()) -> Iterator[None]:
    """Converts SystemExit and similar exceptions raised in the block to an error that names `what` and the line of
    the user's code. `about` are the settings that the error is about.

    Without this conversion, the process would end silently with the user's exit status, which can be 0. Exceptions
    raised by signals are not converted, because a worker that was stopped by SIGINT can be started again.
    """
    try:
        yield
    except (Exception, Interrupted, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise error_type(f"{what}: {describe_exit(error)}".removeprefix(": ")).about(*about) from error


def describe_exit(error: BaseException) -> str:
    """Returns a description such as "it ends the process at models.py:3 (sys.exit(1)): SystemExit: 1"."""
    return f"it ends the process at {place_of(error)}: {type(error).__name__}: {error}".rstrip(": ")


def place_of(error: BaseException) -> str:
    """Returns the innermost line of the user's code, for example "/home/me/models.py:3 (sys.exit(1))".

    If no line of the user's code is involved, returns the innermost line of another package. This project's own lines
    are never to blame."""
    return _innermost(traceback.extract_tb(error.__traceback__))


def place_of_call() -> str:
    """Returns the line of the user's code that has called this project, in the format of `place_of`."""
    return _innermost(traceback.extract_stack())


def without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without the frames of this project."""
    if trace is None:
        return None
    rest = without_own_frames(trace.tb_next)
    if _PROJECT in trace.tb_frame.f_code.co_filename:
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def has_users_frames(trace: TracebackType | None) -> bool:
    """Returns whether a traceback contains a line of the user's code."""
    return any(_is_users(frame.filename) for frame in traceback.extract_tb(trace))


def _is_users(file: str) -> bool:
    return not any(part in file for part in _NOT_THE_USERS)


def _innermost(stack: Sequence[traceback.FrameSummary]) -> str:
    frames = [frame for frame in stack if _PROJECT not in frame.filename]
    own = [frame for frame in frames if _is_users(frame.filename)]
    if not frames:
        return "an unknown place"
    frame = (own or frames)[-1]
    line = f" ({closed(frame.line)})" if frame.line else ""
    return f"{frame.filename}:{frame.lineno}{line}"


def closed(line: str) -> str:
    """Returns the first line of a statement with an ellipsis for the lines that follow: `f(` becomes `f(…)`."""
    missing: list[str] = []
    for character in line:
        if character in _CLOSING:
            missing.append(_CLOSING[character])
        elif missing and character == missing[-1]:
            missing.pop()
    return f"{line}…{''.join(reversed(missing))}" if missing else line
