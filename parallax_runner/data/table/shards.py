"""Finds missing files of a set whose names number its files, such as `part-00002-of-00010.parquet`."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"(.*?)(\d+)-of-(\d+)(?!\d)(.*)", re.DOTALL)


def missing_shards(names: Iterable[str]) -> list[str]:
    """Returns the names of the files that a set lacks, in their order. A set is numbered from 0, or from 1 if it has a
    file with the number of all files."""
    sets: dict[tuple[str, str, str, int], set[int]] = {}
    for name in names:
        found = _NUMBERED.fullmatch(name)
        if found is not None:
            before, number, count, after = found.groups()
            sets.setdefault((before, count, after, len(number)), set()).add(int(number))
    return [name for key, numbers in sets.items() for name in _missing_of(key, numbers)]


def _missing_of(key: tuple[str, str, str, int], numbers: set[int]) -> list[str]:
    before, count, after, digits = key
    first = 1 if int(count) in numbers else 0
    expected = range(first, first + int(count))
    return [f"{before}{number:0{digits}}-of-{count}{after}" for number in expected if number not in numbers]
