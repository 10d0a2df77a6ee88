"""The ops that tell and read what has changed in a rank's variables since the last checkpoint.

Each op of a step that writes rows of a table first sets a mark for these rows. The variables of maps, whose writes are
within functions, are compared with a copy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.rows_written import BY_IDS, BY_PLACE
from parallax_runner.graph import edit
from parallax_runner.graph.effects import Effects
from parallax_runner.graph.growing.marks import key_calls
from parallax_runner.rewrite.distributed_graph import DistributedGraph, LogicalVariable, Piece


@dataclass(frozen=True)
class Contents:
    """What a delta has of a run's variables, by full names: the changed rows of `tables`, nothing of `slots`, the
    changed elements of maps, and all of every other variable."""

    tables: frozenset[str]
    slots: frozenset[str]


class Changes(ABC):
    """What has changed in this rank's part of a piece of a variable since `begin_again`."""

    def __init__(self, variable: LogicalVariable, piece: Piece) -> None:
        self.variable, self.piece = variable, piece

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of what is at a place."""

    @abstractmethod
    def begin_again(self, session: tf.Session) -> None:
        """Forgets all changes so far. No step may run."""

    @abstractmethod
    def find(self, session: tf.Session) -> np.ndarray:
        """Returns the places that have changed, in ascending order (int64 [n]). No step may run until they are read."""

    @abstractmethod
    def read(self, session: tf.Session, first: int, count: int) -> np.ndarray:
        """Returns the values at `count` of the places that `find` has returned, starting with number `first`."""

    @property
    def value_bytes(self) -> int:
        """The size of what is at a place."""
        return math.prod(self.shape) * self.variable.dtype.size


class ChangedRows(Changes):
    """The rows that steps have written. A place is a row of the variable. If an op of the step may write any row, all
    rows count as written."""

    def __init__(self, variable: LogicalVariable, piece: Piece, writes: list[tf.Operation]) -> None:
        super().__init__(variable, piece)
        has_ids = all(_is_by_ids(op, piece.handle) for op in writes)
        self._marks = _Marks(piece, writes) if has_ids else None
        self._at = tf.placeholder(tf.int64, [None], name="changed_rows")
        self._rows = piece.read_at(self._at)
        self._found = np.zeros(0, np.int64)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a row."""
        return self.variable.shape[1:]

    def begin_again(self, session: tf.Session) -> None:
        """Clears the marks."""
        if self._marks is not None:
            session.run(self._marks.clear)

    def find(self, session: tf.Session) -> np.ndarray:
        """Returns the rows that have marks."""
        stored = self.piece.stored
        self._found = np.arange(stored.count)
        if self._marks is not None:
            self._found = np.flatnonzero(session.run(self._marks.read))
        return stored.first + self._found * stored.step

    def read(self, session: tf.Session, first: int, count: int) -> np.ndarray:
        """Returns rows."""
        values: np.ndarray = session.run(self._rows, {self._at: self._found[first : first + count]})
        return values


class _Marks:
    """A mark for each row of a piece (bool), which each op in `writes` sets for the rows that it writes."""

    def __init__(self, piece: Piece, writes: list[tf.Operation]) -> None:
        handle = piece.handle.op
        # On the CPU, because other devices have no op that sets single marks.
        with tf.control_dependencies(None), tf.device(handle.device or None), tf.device("/cpu:0"):
            name = f"{handle.name}/changed"
            marks = tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[piece.stored.count], shared_name=name, name=name)
            self.read = tf.raw_ops.ReadVariableOp(resource=marks, dtype=tf.bool)
            self.clear = tf.raw_ops.AssignVariableOp(resource=marks, value=tf.zeros([piece.stored.count], tf.bool))
            for op in writes:
                _mark(marks, op)


def _mark(marks: tf.Tensor, op: tf.Operation) -> None:
    """Lets `op` wait for a mark on each row that it writes.

    If a step whose values are not finite is skipped, the last input of `op` does not arrive. Then the mark is not set
    either, because it waits for this input.
    """
    *_, last = [tensor for tensor in op.inputs if tensor.dtype != tf.resource]
    with tf.device(op.device or None):
        arrived = tf.identity(last)
    with tf.control_dependencies([arrived]):
        mark = tf.raw_ops.ResourceScatterUpdate(
            resource=marks, indices=op.inputs[_position_of_ids(op)], updates=tf.constant(True)
        )
    op._add_control_input(mark)


def _position_of_ids(op: tf.Operation) -> int:
    return [argument.name for argument in op.op_def.input_arg].index("indices")


def _is_by_ids(op: tf.Operation, handle: tf.Tensor) -> bool:
    """Returns whether an op writes rows by their ids, outside of branches and loops."""
    is_direct = handle.name in [tensor.name for tensor in op.inputs]
    return is_direct and op.type.startswith(BY_IDS) and not op.type.startswith(BY_PLACE)


class ChangedElements(Changes):
    """The elements that differ from a copy of the variable. A place is the position of an element in the variable."""

    def __init__(self, variable: LogicalVariable, piece: Piece) -> None:
        super().__init__(variable, piece)
        with tf.device(piece.handle.op.device or None):
            # `Piece.read` would gather the rows of all ranks.
            self._own = tf.raw_ops.ReadVariableOp(resource=piece.handle, dtype=variable.dtype)
        self._copy = self._values = np.zeros(0, variable.dtype.as_numpy_dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an element."""
        return ()

    def begin_again(self, session: tf.Session) -> None:
        """Copies this rank's part of the variable."""
        self._copy = session.run(self._own).reshape(-1)

    def find(self, session: tf.Session) -> np.ndarray:
        """Returns the positions of the elements that differ from the copy."""
        now = session.run(self._own).reshape(-1)
        found = np.flatnonzero(now != self._copy)
        self._values = now[found]
        columns = math.prod(self.variable.shape[1:])
        own_rows, own_columns = np.divmod(found, columns)
        stored = self.piece.stored
        return (stored.first + own_rows * stored.step) * columns + own_columns

    def read(self, session: tf.Session, first: int, count: int) -> np.ndarray:
        """Returns elements."""
        return self._values[first : first + count]


def changes_of(distributed: DistributedGraph, contents: Contents) -> tuple[Changes, ...]:
    """Returns the changes that this rank tells in a delta. Adds ops to the graph, so call this before the session is
    opened.

    Each rank tells those of the pieces that are spread over the ranks, and the chief those of all other pieces.
    """
    maps = _variables_of_maps(distributed)
    writes = _writes_in_step(distributed)
    found: list[Changes] = []
    with distributed.graph.as_default(), tf.device(distributed.device or None), tf.name_scope("delta/"):
        for variable, piece in _told_pieces(distributed):
            if variable.name in contents.tables:
                found.append(ChangedRows(variable, piece, writes[piece.handle.op.name]))
            elif variable.name in maps or _is_other_spread(variable, piece, contents):
                found.append(ChangedElements(variable, piece))
    return tuple(found)


def _variables_of_maps(distributed: DistributedGraph) -> set[str]:
    calls = key_calls(distributed.graph.get_operations())
    return {handle.op.name for call in calls for handle in call.handles if handle is not None}


def _told_pieces(distributed: DistributedGraph) -> Iterator[tuple[LogicalVariable, Piece]]:
    for variable in distributed.variables:
        for piece in variable.pieces:
            if distributed.rank == 0 or piece.ranks is not None:
                yield variable, piece


def _is_other_spread(variable: LogicalVariable, piece: Piece, contents: Contents) -> bool:
    """Returns whether a piece is spread over the ranks, so that the chief cannot write it whole."""
    return piece.ranks is not None and variable.name not in contents.slots


def _writes_in_step(distributed: DistributedGraph) -> dict[str, list[tf.Operation]]:
    """Returns the ops of a step that write variables, or may write them in a function, by the names of the handles.

    A step also fetches its loss and its metrics, which can wait for writes of their own.
    """
    fetched = (distributed.loss, *distributed.metric_sums, *distributed.metric_last)
    step = edit.ancestors([distributed.train_op, *(tensor.op for tensor in fetched)])
    effects = Effects.of(distributed.graph)
    found: dict[str, list[tf.Operation]] = defaultdict(list)
    for op in sorted(step, key=lambda op: op.name):
        for name in effects.written_by(op):
            found[name].append(op)
    return found
