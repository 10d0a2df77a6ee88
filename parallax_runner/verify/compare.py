"""Compares two sets of variables by name, and reports where they differ. Does not import TensorFlow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

# `action=verify` compares a run with one device after each part of this many steps. Longer parts would allow a model to
# amplify rounding errors until they exceed the tolerance.
PART_STEPS = 10
# Two correct runs may differ by up to this many rounding errors of a variable's largest element.
ROUNDINGS = 16


@dataclass(frozen=True)
class VariableComparison:
    """The comparison of one variable.

    `max_absolute` is the largest difference between two elements. `max_absolute` is infinite if exactly one of the two
    elements is NaN or if the arrays cannot be compared. `max_relative` is that difference divided by the variable's
    scale (see `compare`). `index` is the position of the largest difference, and `actual` and `expected` are the two
    elements at this position. All three are None if there is no difference. `mismatch` is the reason why the arrays
    cannot be compared (different shapes or dtypes), or is empty. `not_finite` counts elements of `expected` that are
    NaN or infinite. Such elements are treated as equal if they are the same on both sides, but they prove little.
    """

    name: str
    equal: bool
    max_absolute: float
    max_relative: float
    index: tuple[int, ...] | None
    actual: Any
    expected: Any
    not_finite: int
    mismatch: str

    def __str__(self) -> str:
        if self.mismatch:
            return f"{self.name}: {self.mismatch}"
        if self.index is None:
            return f"{self.name}: identical"
        row = f"row {self.index[0]}, " if len(self.index) > 1 else ""
        return (
            f"{self.name}: differs by {self.max_absolute:.3g} ({self.max_relative:.3g} relative) at {row}"
            f"index {list(self.index)}: {self.actual}, expected {self.expected}"
        )


@dataclass(frozen=True)
class Comparison:
    """The comparison of all variables, in the order of `expected`.

    `missing` contains the names that only `expected` has, and `unexpected` contains the names that only `actual` has.
    """

    variables: tuple[VariableComparison, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether all names are present and all variables are equal. False if there is nothing to compare."""
        return bool(self.variables) and not self.missing and not self.unexpected and self.first_difference is None

    @property
    def first_difference(self) -> VariableComparison | None:
        """The first variable, in graph order, that is not equal within the tolerance."""
        return next((variable for variable in self.variables if not variable.equal), None)

    @property
    def max_relative(self) -> float:
        """The largest relative difference of all variables, or 0 if there are no variables."""
        return max((variable.max_relative for variable in self.variables), default=0.0)

    def as_json(self) -> dict[str, Any]:
        """Returns the comparison for `summary.json`. Numbers that are not finite become strings ("inf", "nan")."""
        first = self.first_difference
        return {
            "ok": self.ok,
            "tolerance": self.tolerance,
            "max_relative": _jsonable(self.max_relative),
            "missing": list(self.missing),
            "unexpected": list(self.unexpected),
            "first_difference": None if first is None else str(first),
            "variables": [
                {
                    "name": variable.name,
                    "equal": variable.equal,
                    "max_absolute": _jsonable(variable.max_absolute),
                    "max_relative": _jsonable(variable.max_relative),
                    "index": None if variable.index is None else list(variable.index),
                    "actual": _jsonable(variable.actual),
                    "expected": _jsonable(variable.expected),
                    "not_finite": variable.not_finite,
                    "mismatch": variable.mismatch,
                }
                for variable in self.variables
            ],
        }


def compare(
    actual: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    *,
    tolerance: float,
    initial: Mapping[str, np.ndarray] | None = None,
) -> Comparison:
    """Compares arrays by name, in the order of `expected`.

    Floating-point variables are equal if no element differs by more than tolerance * scale. Other variables are equal
    only if they are identical. The scale is max(1, largest |expected| of the variable). If `initial` is given, the
    scale is instead the variable's largest change from `initial`, so that a wrong step is also detected in a small
    variable. The scale is never so small that the variable's own rounding would count as a difference. NaN is equal
    only to NaN, and an infinity only to the same infinity.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise ValueError(f"tolerance={tolerance}, expected a finite number that is not negative")
    return Comparison(
        variables=tuple(
            _compare_one(
                name,
                np.asarray(actual[name]),
                np.asarray(expected[name]),
                tolerance,
                None if initial is None else np.asarray(initial[name]),
            )
            for name in expected
            if name in actual
        ),
        missing=tuple(name for name in expected if name not in actual),
        unexpected=tuple(name for name in actual if name not in expected),
        tolerance=tolerance,
    )


def largest(one: Comparison, other: Comparison) -> Comparison:
    """Returns the larger difference of each variable, from two comparisons of the same variables."""
    pairs = zip(one.variables, other.variables, strict=True)
    return dataclasses.replace(one, variables=tuple(max(pair, key=lambda each: each.max_relative) for pair in pairs))


def comparison_table(comparison: Comparison) -> Table:
    """Returns a table for a terminal: one row per variable, with missing and unexpected names below."""
    table = Table(title=f"equal within {comparison.tolerance:g}: {'yes' if comparison.ok else 'NO'}")
    table.add_column("variable", overflow="fold")
    table.add_column("max difference", justify="right")
    table.add_column("relative", justify="right")
    table.add_column("at")
    table.add_column("equal")
    for variable in comparison.variables:
        at = variable.mismatch or ("" if variable.index is None else str(list(variable.index)))
        equal = ("yes" if variable.equal else "NO") + (
            f" ({variable.not_finite} not finite)" if variable.not_finite else ""
        )
        table.add_row(variable.name, f"{variable.max_absolute:.3g}", f"{variable.max_relative:.3g}", at, equal)
    for name in comparison.missing:
        table.add_row(name, "", "", "missing", "NO")
    for name in comparison.unexpected:
        table.add_row(name, "", "", "unexpected", "NO")
    return table


def _mismatch(actual: np.ndarray, expected: np.ndarray) -> str:
    """Returns the reason why the values cannot be compared, or an empty string."""
    if actual.shape != expected.shape:
        return f"shape {actual.shape}, expected {expected.shape}"
    if actual.dtype != expected.dtype:
        return f"dtype {actual.dtype}, expected {expected.dtype}"
    return ""


def _compare_one(
    name: str, actual: np.ndarray, expected: np.ndarray, tolerance: float, initial: np.ndarray | None
) -> VariableComparison:
    mismatch = _mismatch(actual, expected)
    if mismatch:
        return VariableComparison(name, False, math.inf, math.inf, None, None, None, 0, mismatch)

    differences, magnitudes = _differences(actual, expected)
    finite = np.isfinite(magnitudes)
    magnitude = float(np.max(magnitudes, where=finite, initial=0.0))
    scale = max(1.0, magnitude)
    if initial is not None and _is_floating(expected.dtype):
        moved, _ = _differences(initial, expected)
        rounding = ROUNDINGS * _eps(expected.dtype) * magnitude / tolerance
        scale = max(float(np.max(moved, where=finite, initial=0.0)), rounding, np.finfo(np.float64).tiny)
    largest = float(np.max(differences, initial=0.0))
    index = None
    if largest > 0:
        index = tuple(int(i) for i in np.unravel_index(int(np.argmax(differences)), differences.shape))
    return VariableComparison(
        name=name,
        equal=largest <= tolerance * scale if _is_floating(expected.dtype) else index is None,
        max_absolute=largest,
        max_relative=largest / scale,
        index=index,
        actual=None if index is None else actual.item(*index),
        expected=None if index is None else expected.item(*index),
        not_finite=int(np.sum(~finite)),
        mismatch="",
    )


def _differences(actual: np.ndarray, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns |actual - expected| and |expected|, float64, elementwise. A difference is 0 only if the two elements are
    identical."""
    if not (_is_floating(expected.dtype) or expected.dtype.kind in "iub"):
        return np.where(actual == expected, 0.0, np.inf), np.zeros(expected.shape)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, e = actual.astype(wide), expected.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        differences = np.abs(a - e)
    differences = np.where(np.isnan(differences), np.inf, differences)
    same = (actual == expected) | (np.isnan(a) & np.isnan(e))
    # Two different large integers may become equal when they are converted to float64.
    smallest = np.finfo(np.float64).tiny
    return np.where(same, 0.0, np.maximum(differences, smallest)), np.abs(e)


def _is_floating(dtype: np.dtype) -> bool:
    """Returns whether a dtype is floating-point. Includes types that TensorFlow adds to NumPy, such as bfloat16."""
    return dtype.kind in "fc" or (dtype.kind == "V" and "float" in dtype.name)


def _eps(dtype: np.dtype) -> float:
    if dtype.kind in "fc":
        return float(np.finfo(dtype).eps)
    import ml_dtypes  # defines the types that TensorFlow adds, and is installed with it

    finfo: Any = ml_dtypes.finfo  # ml_dtypes has no type annotations
    return float(finfo(dtype).eps)


def _jsonable(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)
