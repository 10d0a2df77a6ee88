"""Predicts the number of bytes that the whole cluster sends for a variable in a step, divided by the number of ranks.

The formulas are from the Parallax paper (EuroSys 2019, section 3), with two changes. They count only sent bytes, while
the paper's table counts sent and received bytes. They also count the traffic to a server on the worker's own machine,
because in this project a server is a separate process.
"""

from __future__ import annotations

from dataclasses import dataclass

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.plan.comm_options import Compression
from parallax_runner.planning.cost.touched import Touched

ID_BYTES = 8
OWNED_ID_BYTES = 4
# Compression rounds these dtypes and leaves other dtypes unchanged.
HALVED, HALF_BYTES = ("float32", "float64"), 2
# Ranks sum these dtypes as float32 (rewrite/exchange/sum_dtype.py).
ADDED_AS_BYTES = {"bfloat16": 4}


@dataclass(frozen=True)
class Traffic:
    """The bytes that one rank exchanges with the owners of a variable in a step.

    `asked` is the size of the requested ids, `pulled` the size of the values, and `pushed` the size of the gradient and
    its ids. `whole` is the size of the gradient after conversion to a dense gradient, and `ids` is the number of ids.
    """

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
    """Returns the traffic for a variable if `touched` rows are exchanged.

    If the owner does not look up rows, the whole variable is pulled.
    """
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
        # One more number per row indicates whether any rank touched the row.
        whole=(variable.size_bytes * share + rows * variable.itemsize) * widened,
        ids=touched.distinct,
    )
