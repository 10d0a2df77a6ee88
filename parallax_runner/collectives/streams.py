"""Streams: exchanges of one session that run at the same time as others, in runs of their own.

All ranks run the exchanges of one stream in the same order of session runs. Between streams, there is no order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_current: ContextVar[str] = ContextVar("stream", default="step")


@contextmanager
def stream(name: str) -> Iterator[None]:
    """Puts the exchanges that are built within the block into a stream."""
    token = _current.set(name)
    try:
        yield
    finally:
        _current.reset(token)


def current_stream() -> str:
    """Returns the stream of exchanges that are built now."""
    return _current.get()
