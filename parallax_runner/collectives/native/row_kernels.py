"""The ops of `src/row_ids.cc`, `src/row_owners.cc` and `src/row_sums.cc`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.collectives.row_kernels import RowKernels


class NativeRowKernels(RowKernels):
    """Ops of the library on rows of several tables."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops

    def unique_ids(
        self,
        ids: Sequence[tf.Tensor],
        *,
        rows: Sequence[int],
        first_keys: Sequence[int],
        names: Sequence[str],
        dtype: tf.DType,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Finds the distinct ids of each table."""
        keys, positions, given_lengths = self._ops.parallax_unique_ids(
            ids=list(ids), rows=list(rows), first_keys=list(first_keys), names=list(names), K=dtype
        )
        return keys, positions, given_lengths

    def pack_ids(
        self, keys: tf.Tensor, *, ranks: int, first_rows: Sequence[int], dtype: tf.DType
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Splits keys by owner."""
        message, owners, counts = self._ops.parallax_pack_ids(
            keys=keys, size=ranks, first_rows=list(first_rows), P=dtype
        )
        return message, owners, counts

    def group_arrived(
        self, came: tf.Tensor, came_counts: tf.Tensor, *, first_rows: Sequence[int]
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Groups by table what ranks have sent."""
        ranks, counts, own = self._ops.parallax_group_arrived(
            came=came, came_counts=came_counts, first_rows=list(first_rows)
        )
        return ranks, counts, own

    def places_by_rank(self, ranks: tf.Tensor, size: int) -> tf.Tensor:
        """Returns the place of each value after a stable sort by rank."""
        return self._ops.parallax_places_by_rank(ranks=ranks, size=size)

    def unpack_rows(
        self,
        message: tf.Tensor,
        places: tf.Tensor,
        lengths: tf.Tensor,
        positions: tf.Tensor,
        ids: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        """Returns the row of each id, by table."""
        found = self._ops.parallax_unpack_rows(
            rows=message, places=places, lengths=lengths, positions=positions, ids=list(ids)
        )
        return list(found)

    def pack_sums(
        self, values: Sequence[tf.Tensor], positions: Sequence[tf.Tensor], lengths: tf.Tensor, places: tf.Tensor
    ) -> tf.Tensor:
        """Returns a message of sums."""
        return self._ops.parallax_pack_sums(
            values=list(values), positions=list(positions), lengths=lengths, places=places
        )

    def sum_arrived(
        self, message: tf.Tensor, places: tf.Tensor, ids: tf.Tensor, lengths: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Sums the rows of a message by id."""
        sums, distinct, distinct_lengths = self._ops.parallax_sum_arrived(
            rows=message, places=places, ids=ids, lengths=lengths
        )
        return sums, distinct, distinct_lengths
