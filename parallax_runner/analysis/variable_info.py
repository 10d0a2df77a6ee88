"""The result of the analysis: the information about a variable that planning needs. Does not use TensorFlow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class GradientKind(StrEnum):
    """The kind of gradient that the backward pass computes for a variable."""

    DENSE = "dense"
    SPARSE = "sparse"
    NONE = "none"


class RowsWritten(StrEnum):
    """The rows that an update writes to a variable and its slots. NOTHING if the variable has no gradient."""

    TOUCHED = "touched"
    ALL = "all"
    NOTHING = ""


@dataclass(frozen=True)
class WholeTable:
    """An op that makes a step transfer all rows of a sharded variable, and the size of this transfer in bytes."""

    op: str
    size_bytes: int


@dataclass(frozen=True)
class WholeInitialValue:
    """A large initial value of a variable or slot that cannot be made in blocks of rows. `because` continues the
    sentence «is made whole, because …»."""

    variable: str
    because: str
    size_bytes: int


@dataclass(frozen=True)
class GrowingTable:
    """A table whose vocabulary grows: the path of its layer, the variable of its rows, and the variables of its map, in
    the order of `MapHandles` (graph/growing/key_map.py). A bucket has `places` rows, and one more for keys without a
    row of their own if `has_overflow_rows`. `min_count`, `unused_steps` and `every_steps` are the rules by which keys
    get rows and lose them. The slots `renewed` start afresh with a row."""

    layer: str
    variable: str
    map_variables: tuple[str, ...]
    places: int
    has_overflow_rows: bool
    min_count: int = 1
    unused_steps: int = 0
    every_steps: int = 0
    renewed: tuple[str, ...] = ()

    @property
    def variables_of_rules(self) -> tuple[str, ...]:
        """The variables of the map that only a map with rules has."""
        return self.map_variables[4:]


@dataclass(frozen=True)
class VariableInfo:
    """A variable, or a piece of a variable that the user's partitioner split, with the optimizer slots that belong to
    it.

    `gradient_rows` is the number of ids (including duplicates) that a rank looks up in a step, or None if it is unknown
    before the graph runs. `pieces` is the number of pieces into which the user's partitioner split the variable
    `full_name`, or 1 without a partitioner. `immovable_op` names the first op, if any, that prevents placing the
    variable on a server, and `immovable_because` continues the sentence that begins with this op's name. The result of
    an op in the update may depend on whether the duplicate ids of a sparse gradient have been merged. `nonlinear_op`
    names the first such op. `counts` is set for a variable such as global_step, which is updated without a gradient and
    in the same way on every replica.

    `min_partitions` is the number of partitions that a script requests through `get_partitioner`, or None without
    `get_partitioner`. `server` is the server that the variable's device scope names, or None. `needed_at` is the point
    in a step's computation (0 to 1) at which the variable's values are first used, and `appears_at` is the point at
    which its gradient is complete. `rows_written` states which rows the update writes. `whole_tables` contains the ops
    that require a worker to receive or send all rows although the gradient is sparse. `is_updated_in_parts` is set if
    the update for a dense gradient can run separately on each shard. `unknown_ahead` is the reason why the variable's
    rows cannot be requested one step in advance, or None if they can be requested. `whole_initial_values` contains the
    initial values of the variable and its slots that a process with only some of the rows also makes whole. `grows` is
    set if the rows belong to the keys of a vocabulary that grows.
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
    immovable_because: str = ""
    whole_initial_values: tuple[WholeInitialValue, ...] = ()
    grows: bool = False

    @property
    def size_bytes(self) -> int:
        """The size of the values in bytes, without slots."""
        return math.prod(self.shape) * self.itemsize

    @property
    def row_bytes(self) -> int:
        """The size of one row in bytes. For a scalar, this is the size of the whole value."""
        return math.prod(self.shape[1:]) * self.itemsize
