"""The ops that give variables the values of a checkpoint.

A piece that has only some rows of a large variable is restored block by block, if the checkpoint contains the variable
in blocks of consecutive rows. TensorFlow reads each block that a slice overlaps as a whole, so the other variables are
read as a whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.part_files import SLICED_DTYPES
from parallax_runner.checkpoints.row_blocks import BLOCK_BYTES
from parallax_runner.checkpoints.slices import Slice, slice_spec
from parallax_runner.rewrite.distributed_graph import LogicalVariable, Piece


@dataclass(frozen=True)
class Assigned:
    """A piece of a variable, and the name and dtype of the tensor of a checkpoint that has the variable's values. The
    values are cast to the variable's dtype."""

    variable: LogicalVariable
    piece: Piece
    source: str
    dtype: tf.DType

    @classmethod
    def by_name(cls, variable: LogicalVariable, piece: Piece) -> Assigned:
        """Returns a piece whose values have the variable's own name and dtype in the checkpoint."""
        return cls(variable, piece, variable.name, variable.dtype)

    def cast(self, values: tf.Tensor) -> tf.Tensor:
        """Returns values of the checkpoint in the variable's dtype."""
        return tf.cast(values, self.variable.dtype)


class Restore:
    """The ops that restore pieces from the checkpoint `prefix` (scalar string). Create this object before the session.

    Variables of at most `block_bytes` bytes are never restored in blocks. `tables` are restored one after the other,
    and `others` restores all other pieces.
    """

    def __init__(self, prefix: tf.Tensor, assigned: Sequence[Assigned], block_bytes: int = BLOCK_BYTES) -> None:
        self.prefix = prefix
        large: dict[tuple[str, tuple[int, ...]], list[Assigned]] = defaultdict(list)
        others = []
        for one in assigned:
            if _has_rows_of_large(one, block_bytes):
                large[one.variable.name, one.piece.offset[1:]].append(one)
            else:
                others.append(one)
        self.others = tf.group(*restore_whole(prefix, others))
        self.tables = [_Table(prefix, of_table) for of_table in large.values()]

    def run(self, session: tf.Session, path: str, block_rows: Mapping[str, int]) -> None:
        """Restores the pieces from the checkpoint `path`. `block_rows` has the numbers of rows in a block, by the names
        of the tensors that the checkpoint contains in blocks. Raises tf.errors.OpError if the checkpoint cannot be
        read."""
        feeds = {self.prefix: path}
        session.run(self.others, feeds)
        for table in self.tables:
            table.restore(session, feeds, block_rows.get(table.source))


def _has_rows_of_large(one: Assigned, block_bytes: int) -> bool:
    """Returns whether a piece has only some rows of a variable that is larger than a block and can be read in
    slices."""
    shape = one.variable.shape
    if not shape or one.dtype not in SLICED_DTYPES:
        return False
    has_all_rows = one.piece.ranks is None and one.piece.step == 1
    return not has_all_rows and int(np.prod(shape)) * one.dtype.size > block_bytes


class _Table:
    """The pieces of a table that this rank assigns. They have the same columns."""

    def __init__(self, prefix: tf.Tensor, assigned: Sequence[Assigned]) -> None:
        self._first = first = assigned[0]
        self.source = first.source
        self._assigned, self._pieces = assigned, [one.piece for one in assigned]
        self._whole = tf.group(*restore_whole(prefix, assigned))
        # The rows of each piece in a block: [begin in the block, begin in the piece, end in the piece].
        self._rows = tf.placeholder(tf.int64, [len(assigned), 3], name="rows")
        self._spec = tf.placeholder(tf.string, [], name="spec")
        (block,) = tf.raw_ops.RestoreV2(
            prefix=prefix, tensor_names=[self.source], shape_and_slices=[self._spec], dtypes=[first.dtype]
        )
        self._block = tf.group(*(self._assign(number, block) for number in range(len(assigned))))

    def restore(self, session: tf.Session, feeds: Mapping[tf.Tensor, str], block_rows: int | None) -> None:
        """Assigns the rows of all pieces, block by block if `block_rows` is not None."""
        if block_rows is None:
            session.run(self._whole, feeds)
            return
        begin = min(piece.stored.first for piece in self._pieces)
        end = 1 + max(piece.stored.row_at(piece.stored.count - 1) for piece in self._pieces)
        for first in range(begin - begin % block_rows, end, block_rows):
            last = min(first + block_rows, end)
            self._restore_block(session, feeds, max(first, begin), last)

    def _restore_block(self, session: tf.Session, feeds: Mapping[tf.Tensor, str], begin: int, end: int) -> None:
        """Assigns those rows of all pieces that are at least `begin` and less than `end`."""
        rows = np.zeros([len(self._pieces), 3], np.int64)
        for number, piece in enumerate(self._pieces):
            places = piece.stored.places(begin, end)
            if places:
                rows[number] = piece.stored.row_at(places.start) - begin, places.start, places.stop
        if np.any(rows[:, 2]):
            session.run(self._block, {**feeds, self._rows: rows, self._spec: self._spec_of(begin, end)})

    def _spec_of(self, begin: int, end: int) -> str:
        shape, piece = self._first.variable.shape, self._first.piece
        part = Slice(
            name=self.source,
            dtype=self._first.dtype,
            full_shape=shape,
            offset=(begin, *piece.offset[1:]),
            shape=(end - begin, *piece.shape[1:]),
        )
        return slice_spec(shape, part)

    def _assign(self, number: int, block: tf.Tensor) -> tf.Operation:
        piece = self._pieces[number]
        first, begin, end = tf.unstack(self._rows[number])
        step = piece.stored.step
        # TensorFlow gathers rows in a third of the time in which it takes a slice with steps.
        own = tf.gather(block, tf.range(first, first + (end - begin) * step, step))
        return piece.assign_at(tf.range(begin, end), self._assigned[number].cast(own))


def restore_whole(prefix: tf.Tensor, assigned: Sequence[Assigned]) -> list[tf.Operation]:
    """Returns ops that restore pieces. They read the variables of pieces with other than consecutive rows as a
    whole."""
    if not assigned:
        return []
    keys = [(one.source, _spec_to_read(one), one.dtype) for one in assigned]
    names, specs, dtypes = zip(*dict.fromkeys(keys), strict=True)
    values = tf.raw_ops.RestoreV2(prefix=prefix, tensor_names=names, shape_and_slices=specs, dtypes=dtypes)
    by_key = dict(zip(dict.fromkeys(keys), values, strict=True))
    ops = []
    for one, key in zip(assigned, keys, strict=True):
        value = by_key[key]
        if one.piece.step > 1:  # the values are sliced here, so that a server receives only its own rows
            value = tf.ensure_shape(value, one.variable.shape)[one.piece.where]
        ops.append(one.piece.assign(one.cast(value)))
    return ops


def _spec_to_read(one: Assigned) -> str:
    """Returns the specification of the slice to read for a piece. If the piece's rows are not contiguous, the slice is
    the whole variable."""
    return slice_spec(one.variable.shape, one.piece) if one.piece.step == 1 else ""
