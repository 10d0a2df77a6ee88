"""Finds rows that another exchange also requests, and counts rows of other ranks."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.routes.alltoall.by_table import of_numbers
from parallax_runner.rewrite.routes.alltoall.row_exchange import Exchange


def are_requested(exchange: Exchange, others: Sequence[Exchange]) -> tf.Tensor:
    """Returns, for each row that ranks request from this rank through `exchange`, whether they also request it through
    one of `others` (bool [rows], ordered by table).

    A request for a row of a slot counts as a request for the same row of the slot's variable.
    """
    ranks = exchange.rewrite.plan.workers
    rows = {table.variable: -(-table.rows // ranks) for one in (exchange, *others) for table in one.tables}
    ends = list(itertools.accumulate(rows.values(), initial=0))
    starts = dict(zip(rows, ends, strict=False))
    return are_among(_keys(exchange, starts), tf.concat([_keys(one, starts) for one in others], axis=0), ends[-1])


def are_among(keys: tf.Tensor, others: tf.Tensor, most: int) -> tf.Tensor:
    """Returns, for each key in `keys` [n], whether `others` [m] also contains it (bool [n]). All keys are less than
    `most`."""
    none = tf.zeros([most], tf.bool)
    marked = tf.tensor_scatter_nd_update(none, others[:, tf.newaxis], tf.ones_like(others, tf.bool))
    return tf.gather(marked, keys)


def sums_of_others(counts: tf.Tensor, rank: int) -> list[tf.Tensor]:
    """Sums the counts [ranks, tables] of the other ranks, by table."""
    return tf.unstack(tf.reduce_sum(counts, axis=0) - counts[rank], num=counts.shape[1])


def _keys(exchange: Exchange, starts: Mapping[str, int]) -> tf.Tensor:
    """Returns, for each requested row, a number (int64) that identifies the variable and the row."""
    own = exchange.own
    return tf.cast(own.whole, tf.int64) + of_numbers(
        [starts[table.variable] for table in exchange.tables], own.numbers, tf.int64
    )
