"""Pass: request the rows for the next step from the servers while a step runs.

All ranks first exchange the ids of the rows that they need in the next step. A row that no rank needs in the running
step is final, because the running step writes only rows that a rank needs. Such a row is early: it is requested
immediately. All other rows are late, and are requested when the next step begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.collectives import ops as collectives
from parallax_runner.rewrite.distributed_graph import Ahead, Carried
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.routes.ps.on_servers import fetch
from parallax_runner.rewrite.schedule.next_batch import NextBatch
from parallax_runner.rewrite.state import Rewrite


@rewrite_pass(reads=["in_two_parts"], writes=["ahead", "sent"])
def ask_servers_ahead(rewrite: Rewrite) -> None:
    """Creates the ops that prepare the next step while a step runs. `train/ahead.py` carries the results of these ops
    from step to step."""
    if not rewrite.in_two_parts:
        return
    batch = NextBatch(rewrite)
    with tf.name_scope("next/"):
        wanted = [tf.unique(tf.reshape(batch.of(one.ids), [-1])) for one in rewrite.in_two_parts]
        needed_now = tf.placeholder(tf.int64, [None], name="needed_now")
        keys = _keys(rewrite, [distinct for distinct, _ in wanted])
        needed_next = collectives.concat_over_ranks(tf.concat(keys, axis=0), name="next/keys")
        always = [*batch.drawn, Carried(needed_now, needed_next)]
        asked: list[Carried] = []
        rows: list[Carried] = []
        for one, (distinct, positions), own in zip(rewrite.in_two_parts, wanted, keys, strict=True):
            is_late = are_among(own, needed_now)
            late, early = tf.boolean_mask(distinct, is_late), tf.boolean_mask(distinct, ~is_late)
            places = tf.gather(early_first(is_late), positions)
            asked += [Carried(one.late, late), Carried(one.places, places)]
            rows.append(Carried(one.early, fetch(rewrite, one.placement, early, narrow=one.narrow)))
        rewrite.ahead = Ahead(
            features=batch.features, first=tuple(always), asked=(*always, *asked), route=(), rows=tuple(rows)
        )


def _keys(rewrite: Rewrite, distinct: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns a number (int64) for each row of each lookup. A row of a variable and the same row of its slots have the
    same number."""
    tables = [one.placement for one in rewrite.in_two_parts]
    rows = {table.variable: table.all_rows for table in tables}
    starts = dict(zip(rows, itertools.accumulate(rows.values(), initial=0), strict=False))
    return [
        tf.cast(ids, tf.int64) + tf.constant(starts[table.variable], tf.int64)
        for table, ids in zip(tables, distinct, strict=True)
    ]


def are_among(keys: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Returns, for each of the distinct `keys` [n], whether `others` [m] also contains it (bool [n])."""
    absent = tf.raw_ops.ListDiff(x=keys, y=others).idx
    present = tf.ones_like(keys, tf.bool)
    return tf.tensor_scatter_nd_update(present, absent[:, tf.newaxis], tf.zeros_like(absent, tf.bool))


def early_first(is_late: tf.Tensor) -> tf.Tensor:
    """Returns the new position of each row (int32 [n]) after the early rows have been moved before the late rows."""
    late = tf.cast(is_late, tf.int32)
    late_before, early_before = (tf.cumsum(each, exclusive=True) for each in (late, 1 - late))
    return tf.where(is_late, tf.reduce_sum(1 - late) + late_before, early_before)
