"""The result of analysis: what planning needs to know about a variable, without TensorFlow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class GradientKind(StrEnum):
    """The kind of gradient that the backward pass makes for a variable."""

    DENSE = "dense"
    SPARSE = "sparse"
    NONE = "none"


class RowsWritten(StrEnum):
    """The rows of a variable and its slots that an update writes; NOTHING if it has no gradient."""

    TOUCHED = "touched"
    ALL = "all"
    NOTHING = ""


@dataclass(frozen=True)
class WholeTable:
    """The op for which a step transfers all rows of a sharded variable, and the bytes of that transfer."""

    op: str
    size_bytes: int


@dataclass(frozen=True)
class VariableInfo:
    """A variable, or a piece of one that the user's partitioner split, with the optimizer slots that follow it.

    `gradient_rows` is the number of ids (including duplicates) that a rank looks up in a step, or None if it is not
    known before running. `pieces` is the number of pieces into which the user's partitioner split the variable
    `full_name`, 1 without one. `immovable_op` names the first op, if any, that keeps the variable from being placed on
    a server. `nonlinear_op` names the first op whose result on the sparse gradient depends on merging duplicate ids.
    `counts` is set for a variable such as global_step, which is updated without a gradient, and equally on every
    replica.

    `min_partitions` is the number that a script's `get_partitioner` wants, or None without one. `server` is the server
    that the variable's device scope names, or None. `needed_at` and `appears_at` are the times in a step's computing (0
    to 1) at which its values are first used and its gradient is complete. `rows_written` says which rows the update
    writes. `whole_tables` are the ops for which a worker needs or sends all rows although the gradient is sparse.
    `is_updated_in_parts` says that the update for a dense gradient can run on each shard of the rows alone.
    `unknown_ahead` says why its rows cannot be requested one step ahead, or is None if they can. `tied_rows` says why
    its update needs all rows of a step at once, or is None if it does not.
    """

    name: str
    full_name: str
    pieces: int
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    gradient: GradientKind
    gradient_rows: int | None
    slots: tuple[str, ...]
    nonlinear_op: str | None = None
    immovable_op: str | None = None
    counts: bool = False
    min_partitions: int | None = None
    server: int | None = None
    needed_at: float = 0.0
    appears_at: float = 1.0
    rows_written: RowsWritten = RowsWritten.NOTHING
    whole_tables: tuple[WholeTable, ...] = ()
    is_updated_in_parts: bool = False
    unknown_ahead: str | None = None
    tied_rows: str | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the values, without slots."""
        return math.prod(self.shape) * self.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one row (all of a scalar)."""
        return math.prod(self.shape[1:]) * self.itemsize
