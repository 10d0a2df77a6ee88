"""Divides the rows of the files for training among parts."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parallax_runner.data.table.read_columns import ReadColumn
from parallax_runner.data.table.stored_table import TEST, TRAIN, VALIDATION, Cell
from parallax_runner.errors import ConfigError, Setting

_DIVIDED = (VALIDATION, TEST)


@dataclass(frozen=True)
class Partition:
    """Which rows of the files for training belong to other parts.

    With `fractions`, such as {"validation": 0.1}, the part of a row follows from a hash of its number among all rows of
    all files for training, keyed by `seed`. So the same rows in another format or in other files are divided alike.
    With `bounds`, such as {"validation": "2024-01-01"}, the rows from this value of `column` on belong to a part.
    Strings are compared byte by byte. With `folds`, each row belongs to one of so many folds, by the same hash, and the
    rows of `fold` are for validation.
    """

    fractions: Mapping[str, float] = field(default_factory=dict)
    column: str | None = None
    bounds: Mapping[str, float | str] = field(default_factory=dict)
    seed: int = 0
    folds: int | None = None
    fold: int | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError if the values do not divide rows."""
        _check_types(self)
        _check_folds(self)
        if sum(map(bool, (self.fractions, self.bounds, self.folds))) != 1:
            raise ConfigError("expected either fractions, or bounds and a column, or folds and a fold.").about(
                Setting.of("data.partition", None)
            )
        if bool(self.bounds) != (self.column is not None):
            raise ConfigError("expected a column and bounds together.").about(
                Setting.of("data.partition.column", self.column)
            )
        if any(fraction <= 0 for fraction in self.fractions.values()) or sum(self.fractions.values()) >= 1:
            raise ConfigError("expected fractions above 0, and a rest for training.").about(
                Setting.of("data.partition.fractions", dict(self.fractions))
            )
        if len({isinstance(bound, str) for bound in self.bounds.values()}) > 1:
            raise ConfigError("expected only numbers or only strings.").about(
                Setting.of("data.partition.bounds", dict(self.bounds))
            )
        if len(set(self.bounds.values())) < len(self.bounds):
            raise ConfigError("expected different bounds; from one bound on, the rows go to one part only.").about(
                Setting.of("data.partition.bounds", dict(self.bounds))
            )

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that rows go to, in the order of their numbers: training is 0."""
        if self.folds is not None:
            return (TRAIN, VALIDATION)
        return (TRAIN, *(self.fractions or self._ordered_bounds()))

    @property
    def read_column(self) -> ReadColumn | None:
        """The column whose bounds divide the rows."""
        if self.column is None:
            return None
        is_text = isinstance(next(iter(self.bounds.values())), str)
        if is_text:
            return ReadColumn(self.column, Cell.STRING, pa.string())
        return ReadColumn(self.column, Cell.NUMBER, pa.float64())

    def part_of_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the number of the part of each row, int8 [rows], from the row's number, int64 [rows]."""
        key = hashlib.sha256(f"{self.seed}".encode()).digest()
        mixed = _mixed(numbers.astype(np.uint64) + np.uint64(int.from_bytes(key[:8], "little")))
        uniform = mixed / 2.0**64
        if self.folds is not None:
            return (np.floor(uniform * self.folds) == self.fold).astype(np.int8)
        limits = np.cumsum(list(self.fractions.values()))
        part = np.searchsorted(limits, uniform, side="right") + 1
        return np.where(part > len(limits), 0, part).astype(np.int8)

    def part_of_values(self, values: pa.Array) -> np.ndarray:
        """Returns the number of the part of each row, int8 [rows], from the values of the column. A row without a value
        is for training."""
        part = np.zeros(len(values), dtype=np.int8)
        for number, bound in enumerate(self._ordered_bounds().values(), start=1):
            limit = bound if isinstance(bound, str) else float(bound)
            is_from_here = pc.greater_equal(values, pa.scalar(limit, values.type))
            part[pc.fill_null(is_from_here, False).to_numpy(zero_copy_only=False)] = number
        return part

    def _ordered_bounds(self) -> dict[str, float | str]:
        return dict(sorted(self.bounds.items(), key=lambda item: item[1]))


def _check_types(given: Partition) -> None:
    """Raises ConfigError for a value that has the wrong type, or that is not finite."""
    _check_parts(given.fractions, "fractions", "a number", _is_number)
    _check_parts(
        given.bounds, "bounds", "a finite number or a string", lambda one: isinstance(one, str) or _is_number(one)
    )
    if not isinstance(given.column, str | None):
        raise ConfigError("expected the name of a column.").about(Setting.of("data.partition.column", given.column))
    if not _is_integer(given.seed):
        raise ConfigError("expected an integer.").about(Setting.of("data.partition.seed", given.seed))


def _check_folds(given: Partition) -> None:
    """Raises ConfigError unless there are no folds, or at least two and a fold among them."""
    if given.folds is None and given.fold is None:
        return
    if not _is_integer(given.folds) or given.folds < 2:
        raise ConfigError("expected an integer, at least 2.").about(Setting.of("data.partition.folds", given.folds))
    if not _is_integer(given.fold) or not 0 <= given.fold < given.folds:
        raise ConfigError(f"expected an integer from 0 to {given.folds - 1}.").about(
            Setting.of("data.partition.fold", given.fold)
        )


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_parts(given: object, key: str, expected: str, is_good: Callable[[object], bool]) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(f"expected a part and {expected}, such as {{{VALIDATION}: 0.1}}.").about(
            Setting.of(f"data.partition.{key}", given)
        )
    for part, value in given.items():
        if part not in _DIVIDED:
            raise ConfigError(f"expected {VALIDATION} or {TEST}.").about(Setting.of(f"data.partition.{key}", part))
        if not is_good(value):
            raise ConfigError(f"expected {expected}.").about(Setting.of(f"data.partition.{key}.{part}", value))


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Returns uint64 numbers whose bits all depend on all bits of the given ones (SplitMix64)."""
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
