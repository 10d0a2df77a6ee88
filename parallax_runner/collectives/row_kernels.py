"""Ops on rows of several tables at once, which a backend can have. Without them, graphs use chains of TensorFlow's
ops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import tensorflow.compat.v1 as tf


class RowKernels(ABC):
    """Ops whose results equal those of the TensorFlow ops that they replace, in bits.

    Values of several tables in one tensor are grouped by table: `lengths` (int32 [tables]) contains the number of
    values of each table. Each op raises InvalidArgumentError if its inputs do not fit to each other.
    """

    @abstractmethod
    def unique_ids(
        self,
        ids: Sequence[tf.Tensor],
        *,
        rows: Sequence[int],
        first_keys: Sequence[int],
        names: Sequence[str],
        dtype: tf.DType,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Finds the distinct ids of each table.

        `ids[t]` (int32 or int64, one dtype for all tables, any shape) are ids of table t, which has `rows[t]` rows and
        the name `names[t]`. Returns

        - the distinct ids plus `first_keys[t]` (`dtype` [distinct]), ascending in each table,
        - the position of each given id among the distinct ids of its table (int32 [given], grouped by table),
        - the number of given ids of each table (int32 [tables]).

        An id that is no row of its table is an error, which names the table.
        """

    @abstractmethod
    def pack_ids(
        self, keys: tf.Tensor, *, ranks: int, first_rows: Sequence[int], dtype: tf.DType
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Splits keys (int32 or int64 [n], ascending) by owner: the key modulo `ranks`.

        The keys of table t divided by `ranks` are at least `first_rows[t]`. Returns these quotients (`dtype` [n]),
        ordered by owner, the owner of each key (int32 [n], in the order of `keys`), and the number of keys of each
        owner and table (int32 [ranks, tables]).
        """

    @abstractmethod
    def group_arrived(
        self, came: tf.Tensor, came_counts: tf.Tensor, *, first_rows: Sequence[int]
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Groups by table the quotients of `pack_ids` that ranks have sent.

        `came` (int32 or int64 [n]) is ordered by rank, and `came_counts` (int32 [ranks]) contains the number that each
        rank has sent. Returns the rank of each (int32 [n], grouped by table, then in the order of `came`), their number
        by rank and table (int32 [ranks, tables]), and each minus the first row of its table.
        """

    @abstractmethod
    def places_by_rank(self, ranks: tf.Tensor, size: int) -> tf.Tensor:
        """Returns the place of each value (int32 [n]) after values are sorted by `ranks` (int32 [n], less than `size`).
        Values with the same rank keep their order."""

    @abstractmethod
    def unpack_rows(
        self,
        message: tf.Tensor,
        places: tf.Tensor,
        lengths: tf.Tensor,
        positions: tf.Tensor,
        ids: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        """Returns the row of each id, for each table ([*shape of ids[t], *shape of a row]).

        The distinct row d of a table is row `places[d]` (int32, grouped by table) of the `message` [rows, ...].
        `positions` (int32, grouped by table) contains the position of each id among the distinct rows of its table. The
        values of the ids do not matter, only their shapes.
        """

    @abstractmethod
    def pack_sums(
        self, values: Sequence[tf.Tensor], positions: Sequence[tf.Tensor], lengths: tf.Tensor, places: tf.Tensor
    ) -> tf.Tensor:
        """Returns a message [distinct rows, ...] in which row `places[d]` (int32, grouped by table) is the sum of the
        `values[t]` [n, ...] whose `positions[t]` (int32 [n]) are d in their table.

        Values are added in the order in which they appear, bfloat16 as float32, other dtypes as they are.
        """

    @abstractmethod
    def sum_arrived(
        self, message: tf.Tensor, places: tf.Tensor, ids: tf.Tensor, lengths: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Sums the rows of a `message` [n, ...] that have the same id in a table.

        The row of `ids[i]` (int32 or int64, grouped by table) is row `places[i]` (int32) of the message. Returns the
        sums, their ids, ascending in each table, and their number in each table (int32 [tables]). Rows are added in the
        order of `ids`, with the dtypes of `pack_sums`.
        """
