"""Changes to this process that a run makes and that end with the run, if the process belongs to the user's own code."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# What undoes the changes of the current run. None in a process that ends with its run, where changes may stay.
_undo: list[Callable[[], None]] | None = None


@contextmanager
def undone() -> Iterator[None]:
    """Undoes, after the block, the changes that the functions of this module have made in it. Only one such block can
    be active in a process."""
    global _undo
    changes = _undo = []
    try:
        yield
    finally:
        _undo = None
        for undo in reversed(changes):
            undo()


def undo_later(undo: Callable[[], None]) -> bool:
    """Calls `undo` when the run ends. Returns False if changes may stay, in which case `undo` is not called."""
    if _undo is None:
        return False
    _undo.append(undo)
    return True


def set_default(name: str, value: str) -> None:
    """Sets an environment variable for the run, unless the user has set it."""
    if name not in os.environ:
        os.environ[name] = value
        undo_later(lambda: _unset(name, value))


def set_level(name: str, level: int) -> None:
    """Sets the level of a logger for the run."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    undo_later(lambda: logger.setLevel(before))


def _unset(name: str, value: str) -> None:
    """Removes a variable, unless the user's code has changed it in the meantime."""
    if os.environ.get(name) == value:
        del os.environ[name]
