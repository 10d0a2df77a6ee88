"""The noun that analysis makes: what planning must know of a variable, without TensorFlow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class GradientKind(StrEnum):
    """How a variable's gradient leaves the backward pass."""

    DENSE = "dense"
    SPARSE = "sparse"
    NONE = "none"


class RowsWritten(StrEnum):
    """Which rows of a variable, and of its slots, an update writes; nothing where it has no gradient."""

    TOUCHED = "touched"
    ALL = "all"
    NOTHING = ""


@dataclass(frozen=True)
class WholeTable:
    """Of a variable that is in shards all rows travel in a step for the op of this name, in so many bytes."""

    op: str
    size_bytes: int


@dataclass(frozen=True)
class VariableInfo:
    """A variable, or a piece of one that the user's partitioner split, with the optimizer slots that follow it.

    `gradient_rows` is how many ids (duplicates counted) a rank looks up in a step, None where only running tells.
    `pieces` is into how many pieces the user's partitioner split the variable `full_name`, 1 for none.
    `immovable_op` names the first op, if any, that keeps the variable from living on a server; `nonlinear_op` the first
    whose result on the sparse gradient depends on merging duplicate ids. `counts`: it is updated without a gradient,
    and alike on every replica, as global_step is. `min_partitions` is what a script's `get_partitioner` wants, None
    without. `server` is the one that the variable's device scope names, None where it names none. `needed_at` and
    `appears_at` say where in a step's computing (0 to 1) its values are first used, and its gradient is there.
    `rows_written` says which rows the update writes. `whole_tables` are the ops for which a worker needs all rows, or
    sends them, though the gradient is sparse. `unknown_ahead` says why nobody can ask for its rows one step ahead, None
    where they can. `tied_rows` says why an update needs all rows of a step at once, None if it does not.
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
    unknown_ahead: str | None = None
    tied_rows: str | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the values, slots not counted."""
        return math.prod(self.shape) * self.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one row (all of a scalar)."""
        return math.prod(self.shape[1:]) * self.itemsize
