"""Writes files in Criteo's layout: a label, 13 integers and 26 hexadecimal strings, between tabs and with blanks.

The values are drawn, because Criteo's own data is only for research.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

INTEGERS = tuple(f"I{number}" for number in range(1, 14))
STRINGS = tuple(f"C{number}" for number in range(1, 27))
NAMES = ("label", *INTEGERS, *STRINGS)
ROWS_PER_BLOCK = 50_000
BLANK_INTEGERS, BLANK_STRINGS = 0.15, 0.05  # fractions of the cells
# The columns have these numbers of distinct strings by turns, as some of Criteo's columns do.
CARDINALITIES = (1_000, 1_000_000, 100_000, 10)
ZIPF_EXPONENT = 1.2


def write(path: Path, size_bytes: int, *, seed: int = 0) -> int:
    """Writes a file of at least this size. Returns its number of rows."""
    generator = np.random.default_rng(seed)
    options = pa_csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    rows = 0
    with open(path, "wb") as file:
        for block in _blocks(generator):
            if file.tell() >= size_bytes:
                return rows
            pa_csv.write_csv(block, file, options)
            rows += block.num_rows
    raise AssertionError("the blocks do not end")


def _blocks(generator: np.random.Generator) -> Iterator[pa.Table]:
    while True:
        columns = [pa.array(generator.integers(0, 2, ROWS_PER_BLOCK))]
        columns += [_integers(generator) for _ in INTEGERS]
        columns += [_strings(generator, number) for number in range(len(STRINGS))]
        yield pa.table(columns, names=NAMES)


def _integers(generator: np.random.Generator) -> pa.Array:
    drawn = generator.pareto(1.0, ROWS_PER_BLOCK) * 10
    return pa.array(drawn.clip(0, 1e6).astype(np.int64), mask=generator.random(ROWS_PER_BLOCK) < BLANK_INTEGERS)


def _strings(generator: np.random.Generator, column: int) -> pa.Array:
    ranks = generator.zipf(ZIPF_EXPONENT, ROWS_PER_BLOCK) % CARDINALITIES[column % len(CARDINALITIES)]
    hashed = (ranks.astype(np.uint64) * np.uint64(2654435761) + np.uint64(column * 7919)).astype(np.dtype(">u4"))
    digits = np.frombuffer(hashed.tobytes().hex().encode(), dtype="S8")
    return pa.array(digits.astype(str), mask=generator.random(ROWS_PER_BLOCK) < BLANK_STRINGS)
