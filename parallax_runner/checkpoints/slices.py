"""Names the part of a variable that an array or a file contains."""

from __future__ import annotations

from dataclasses import dataclass, replace

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.distributed_graph import Piece, index


@dataclass(frozen=True)
class Slice:
    """The part of a logical variable that an array contains.

    The part has the shape `shape` and starts at `offset` (one entry per dimension). The part takes every `step`-th
    index of the first dimension.
    """

    name: str
    dtype: tf.DType
    full_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    step: int = 1

    @property
    def where(self) -> tuple[slice, ...]:
        """The NumPy index of the part in the whole variable."""
        return index(self.offset, self.shape, self.step)

    @property
    def row_bytes(self) -> int:
        """The number of bytes of a row. The part must not be a scalar."""
        elements = 1
        for size in self.shape[1:]:
            elements *= size
        return elements * self.dtype.size

    def rows(self, first: int, count: int) -> Slice:
        """Returns `count` consecutive rows of this part, starting with its row `first`."""
        offset = (self.offset[0] + first, *self.offset[1:])
        return replace(self, offset=offset, shape=(count, *self.shape[1:]))


def slice_spec(shape: tuple[int, ...], piece: Piece | Slice) -> str:
    """Returns TensorFlow's specification of a slice of a tensor, such as «40000 128 0,10000:0,128», or an empty string
    for the whole tensor."""
    if piece.shape == shape:
        return ""
    ranges = ":".join(f"{offset},{length}" for offset, length in zip(piece.offset, piece.shape, strict=True))
    return " ".join(map(str, shape)) + " " + ranges
