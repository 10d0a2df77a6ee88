"""Counts the elements of a `tf.data` pipeline by reading it. Says so if this takes long, and keeps the result for later
processes."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallax_runner.files.cache import cache_key, cache_root
from parallax_runner.files.plain import object_in
from parallax_runner.files.whole import write_whole
from parallax_runner.graph.tf_data.stated_input import UncertainInputError

log = logging.getLogger(__name__)

FORMAT = 1  # increase this when the meaning of a kept count changes
FIRST_LINE_SECS = 2.0  # a count that takes longer is announced
BETWEEN_LINES = 4  # each further line comes after this many times the time of the line before
KEPT_FROM_SECS = 0.5  # a faster count is not kept


@dataclass(frozen=True)
class Counting:
    """How to count a pipeline.

    `numbers` reads the pipeline and yields numbers of `unit`, which are examples or batches. `size` is the batch size:
    of each number n, the part n // size * size counts as whole. `state` returns JSON values that change whenever the
    result may change, or raises UncertainInputError. `what` names the data, and `remedy` says how to avoid the count.
    """

    what: str
    unit: str
    size: int
    numbers: Callable[[], Iterator[int]]
    state: Callable[[], list[Any]]
    remedy: str


def counted(counting: Counting) -> tuple[int, int]:
    """Returns the sum of the numbers, and the sum of their whole parts. Reads the pipeline, unless an earlier process
    has kept the result for the same state."""
    try:
        path, reason = _path_of(counting), None
    except (UncertainInputError, OSError) as error:
        path, reason = None, str(error)
    kept = None if path is None else _kept_in(path)
    if kept is not None:
        log.info("%s: %d %s, as counted by an earlier run", counting.what, kept[0], counting.unit)
        return kept
    started = time.monotonic()
    found = _read(counting)
    secs = time.monotonic() - started
    if path is not None and secs >= KEPT_FROM_SECS:
        reason = _keep(path, found)
    if secs < FIRST_LINE_SECS:
        log.info("%s: counted %d %s in %.1f s", counting.what, found[0], counting.unit, secs)
        return found
    outlook = "the next run of this pipeline over unchanged files knows the number"
    if reason is not None:
        outlook = f"the next run counts again, because {reason}"
    _tell(f"{counting.what}: counted {found[0]:,} {counting.unit} in {secs:.0f} s; {outlook}")
    return found


def _read(counting: Counting) -> tuple[int, int]:
    total, whole = 0, 0
    started, due_secs = time.monotonic(), FIRST_LINE_SECS
    for number in counting.numbers():
        total += number
        whole += number // counting.size * counting.size
        if time.monotonic() - started < due_secs:
            continue
        so_far = f"{counting.what}: counting the {counting.unit} by reading all of them, {total:,} so far"
        is_first = due_secs == FIRST_LINE_SECS
        _tell(f"{so_far}, because TensorFlow does not know their number. {counting.remedy}" if is_first else so_far)
        due_secs *= BETWEEN_LINES
    return total, whole


def _path_of(counting: Counting) -> Path:
    """Returns the file that keeps the result. Raises UncertainInputError if the result cannot be kept."""
    key = cache_key([FORMAT, counting.unit, counting.size, counting.state()])
    return cache_root() / "counts" / f"{key}.json"


def _kept_in(path: Path) -> tuple[int, int] | None:
    found = object_in(path).get("counted")
    if not isinstance(found, list) or len(found) != 2:
        return None
    is_valid = all(type(one) is int and one >= 0 for one in found)
    return (found[0], found[1]) if is_valid else None


def _keep(path: Path, found: tuple[int, int]) -> str | None:
    """Writes the result. Returns the reason why this is not possible, or None."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"counted": found}))
    except OSError as error:
        return f"the result cannot be written to {path.parent}: {error.strerror}"
    return None


def _tell(note: str) -> None:
    log.info("%s", note)
    print(f"parallax_runner: {note}", file=sys.stderr, flush=True)
