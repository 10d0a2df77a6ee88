"""Finds the ends of records in CSV. A newline between quotation marks ends no record."""

from __future__ import annotations

import numpy as np

_NEWLINE, _RETURN, _QUOTE = ord("\n"), ord("\r"), ord('"')


def end_of_records(start: bytes, more: bytes, delimiter: str) -> int:
    """Returns the position behind the last whole record in `more`, or 0. `start` is the beginning of a record."""
    if b'"' not in start and b'"' not in more:
        return more.rfind(b"\n") + 1
    ends = record_ends(start + more, delimiter)
    return int(ends[-1]) - len(start) if len(ends) else 0


def record_ends(data: bytes, delimiter: str) -> np.ndarray:
    """Returns the positions behind the newlines that end records, int64. `data` begins with a record."""
    text = np.frombuffer(data, dtype=np.uint8)
    newlines = np.flatnonzero(text == _NEWLINE)
    quotes = np.flatnonzero(text == _QUOTE)
    if len(quotes) == 0:
        return newlines + 1
    opening, closing = _spans(text, quotes, ord(delimiter))
    opened = np.searchsorted(opening, newlines)
    closed = np.searchsorted(closing, newlines)
    ends: np.ndarray = newlines[opened == closed] + 1
    return ends


def _spans(text: np.ndarray, quotes: np.ndarray, delimiter: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the positions of the quotation marks that open a quoted text, and of those that close it. A mark within a
    cell that does not begin with one is an ordinary character."""
    at_start = _is_at_start(text, quotes, delimiter)
    follows_mark = np.diff(quotes, prepend=-2) == 1
    # Usually, marks open and close by turns. A doubled mark in a quoted text closes it and opens it again.
    if np.all((at_start | follows_mark)[0::2]):
        return _closed(quotes[0::2], quotes[1::2], len(text))
    return _spans_one_by_one(quotes.tolist(), at_start.tolist(), len(text))


def _is_at_start(text: np.ndarray, positions: np.ndarray, delimiter: int) -> np.ndarray:
    """Returns whether a cell begins at each position."""
    before = text[np.maximum(positions - 1, 0)]
    is_boundary = (before == delimiter) | (before == _NEWLINE) | (before == _RETURN)
    is_start: np.ndarray = is_boundary | (positions == 0)
    return is_start


def _closed(opening: np.ndarray, closing: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    is_open = len(opening) > len(closing)
    return opening, np.append(closing, size) if is_open else closing


def _spans_one_by_one(quotes: list[int], at_start: list[bool], size: int) -> tuple[np.ndarray, np.ndarray]:
    opening, closing = [], []
    is_open, skipped = False, -1
    for number, position in enumerate(quotes):
        if number == skipped:
            continue
        if not is_open:
            is_open = at_start[number]
            if is_open:
                opening.append(position)
        elif quotes[number + 1 : number + 2] == [position + 1]:
            skipped = number + 1  # a doubled mark is a character
        else:
            closing.append(position)
            is_open = False
    return _closed(np.array(opening, dtype=np.int64), np.array(closing, dtype=np.int64), size)
