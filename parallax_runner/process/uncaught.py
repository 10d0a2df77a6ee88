"""Shows an error of this project that the user's code does not catch: one message without a traceback, and the exit
status of the error."""

from __future__ import annotations

import sys
import threading
import weakref
from types import TracebackType
from typing import Any

from parallax_runner.errors import ParallaxError
from parallax_runner.process.user_code import without_own_frames

# The errors that the user's code may not catch, by id, and whether the terminal already shows their message.
_shown: dict[int, bool] = {}
_lock = threading.RLock()  # an error can be freed while this thread holds the lock


def show_if_uncaught(error: ParallaxError, *, is_shown: bool = False) -> None:
    """Prepares for the case that no code catches `error`: this process then prints the message, unless `is_shown`, and
    the line that called fit. If the main thread ends by this error, the process gets the exit status of the error.

    Python's two hooks for uncaught exceptions are replaced only as long as such an error exists. Other exceptions are
    passed on to the hooks that were there before.
    """
    with _lock:
        if not _shown:
            _hooks.install()
        _shown[id(error)] = is_shown
    weakref.finalize(error, _forget, id(error)).atexit = False


def _forget(error_id: int) -> None:
    with _lock:
        del _shown[error_id]
        if not _shown:
            _hooks.remove()


class _Hooks:
    """The hooks for uncaught exceptions in the main thread and in other threads."""

    def __init__(self) -> None:
        self._before: Any = None
        self._before_in_thread: Any = None
        # A method is a new object each time that it is read, but `remove` must recognize it.
        self._own, self._own_in_thread = self._end_process, self._end_thread

    def install(self) -> None:
        self._before, sys.excepthook = sys.excepthook, self._own
        self._before_in_thread, threading.excepthook = threading.excepthook, self._own_in_thread

    def remove(self) -> None:
        """Puts the earlier hooks back, unless other code has replaced this object's hooks in the meantime."""
        if sys.excepthook is self._own:
            sys.excepthook = self._before
        if threading.excepthook is self._own_in_thread:
            threading.excepthook = self._before_in_thread

    def _end_process(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Handles an exception that ends the main thread. Raises SystemExit, which Python accepts from this hook as the
        exit status of the process."""
        if id(error) not in _shown or not isinstance(error, ParallaxError):
            self._before(kind, error, trace)
            return
        _show(error)
        if self._before is not sys.__excepthook__:  # a hook of the user's, for example one that writes a log
            self._before(kind, error, without_own_frames(trace))
        is_interactive = hasattr(sys, "ps1")
        if not is_interactive:
            raise SystemExit(error.exit_status)

    def _end_thread(self, told: Any) -> None:
        """Handles an exception that ends another thread. `told` are the arguments of `threading.excepthook`."""
        error = told.exc_value
        if id(error) not in _shown or not isinstance(error, ParallaxError):
            self._before_in_thread(told)
            return
        _show(error)
        if self._before_in_thread is not threading.__excepthook__:
            self._before_in_thread(told)


_hooks = _Hooks()


def _show(error: ParallaxError) -> None:
    if _shown[id(error)]:
        print(f"parallax_runner: fit was called at {error.called_at}", file=sys.stderr)
    else:
        print(f"parallax_runner: {error}\n    at {error.called_at}", file=sys.stderr)
