"""Streams: exchanges of one session that run at the same time as others, in runs of their own.

All ranks run the exchanges of one stream in the same order of session runs. Between streams, there is no order. A
stream has a deadline: after how many steps the results of its exchanges are needed. What is needed first is carried
first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Stream:
    """A stream of exchanges, whose results are needed `deadline_steps` after the step that begins them."""

    name: str
    deadline_steps: int


STEP = Stream("step", deadline_steps=0)
_current: ContextVar[Stream] = ContextVar("stream", default=STEP)


@contextmanager
def stream(name: str, *, deadline_steps: int = 0) -> Iterator[None]:
    """Puts the exchanges that are built within the block into a stream."""
    token = _current.set(Stream(name, deadline_steps))
    try:
        yield
    finally:
        _current.reset(token)


def current_stream() -> Stream:
    """Returns the stream of exchanges that are built now."""
    return _current.get()
