"""Predicts the bytes that a variable costs in a step: what the whole cluster sends, divided by the ranks.

Formulas of the Parallax paper (EuroSys 2019, section 3), for sending alone (its table counts sent and received) and
without its discount for a server on a worker's own machine: here a server is a process of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.plan.comm_options import Compression
from parallax_runner.planning.cost.touched import Touched

ID_BYTES = 8
OWNED_ID_BYTES = 4
# Compression rounds these, and leaves others as they are.
HALVED, HALF_BYTES = ("float32", "float64"), 2
# Ranks add these up as float32 (rewrite/exchange/sum_dtype.py).
ADDED_AS_BYTES = {"bfloat16": 4}


@dataclass(frozen=True)
class Traffic:
    """What one rank exchanges with the owners of a variable in a step: bytes of the ids that it asks for, of the values
    that it gets, and of the gradient that it gives, ids included. `whole` is the gradient made dense; `ids` how many
    there are."""

    asked: float
    pulled: float
    pushed: float
    whole: float
    ids: float = 0.0


def traffic(
    variable: VariableInfo,
    touched: Touched,
    compression: Compression = Compression.OFF,
    *,
    looks_up_there: bool = True,
) -> Traffic:
    """Of a variable of which `touched` rows travel, or, where the owner does not look them up, the whole variable."""
    share = HALF_BYTES / variable.itemsize if compression is not Compression.OFF and variable.dtype in HALVED else 1.0
    widened = ADDED_AS_BYTES.get(variable.dtype, variable.itemsize) / variable.itemsize
    if variable.gradient is not GradientKind.SPARSE:
        size = variable.size_bytes * share
        return Traffic(asked=0.0, pulled=size, pushed=size, whole=size * widened)
    row_bytes, rows = variable.row_bytes * share, variable.shape[0]
    return Traffic(
        asked=touched.distinct * ID_BYTES if looks_up_there else 0.0,
        pulled=touched.distinct * row_bytes if looks_up_there else variable.size_bytes * share,
        pushed=touched.distinct * (row_bytes + ID_BYTES),
        # A number for each row beside it tells whether any rank touched it.
        whole=(variable.size_bytes * share + rows * variable.itemsize) * widened,
        ids=touched.distinct,
    )
