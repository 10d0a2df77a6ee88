"""What the user's code may do to a run: end it by an exception that is no error, as sys.exit raises one."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parallax_runner.errors import Interrupted, ParallaxError

_NOT_THE_USERS = ("site-packages", "dist-packages", "<frozen ", str(Path(__file__).parents[1]))


@contextmanager
def must_not_exit(what: str, error_type: type[ParallaxError]) -> Iterator[None]:
    """Within the block, SystemExit and its like become an error that says `what` raised it, and where.

    Without this the process would end by the user's exit status, 0 perhaps, and without a word. A signal passes: a
    worker that SIGINT ends may be started again.
    """
    try:
        yield
    except (Exception, Interrupted, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise error_type(f"{what}: {describe_exit(error)}") from error


def describe_exit(error: BaseException) -> str:
    """«it ends the process at models.py:3 (sys.exit(1)): SystemExit: 1»."""
    return f"it ends the process at {place_of(error)}: {type(error).__name__}: {error}".rstrip(": ")


def place_of(error: BaseException) -> str:
    """The innermost line of the user's code: «/home/me/models.py:3 (sys.exit(1))»."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(part in frame.filename for part in _NOT_THE_USERS)]
    if not frames:
        return "an unknown place"
    frame = (own or frames)[-1]
    return f"{frame.filename}:{frame.lineno} ({frame.line})"
