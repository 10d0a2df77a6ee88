"""Requests the rows of a step while the previous step runs.

While step t runs, each rank requests the rows of step t+1 from their owners. A row that step t does not write is final,
so its owner sends the row immediately: the row is early. All other rows are late, and arrive when step t+1 begins. If
nothing is fed, a step requests its rows when it runs, and treats all rows as late. If the rows were requested during
the previous step, the results of that request are fed to the step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.exchange.compression import half_dtype
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.routes.alltoall.lookup import Asked, arrivals, ask
from parallax_runner.rewrite.routes.alltoall.marks import are_among, count_by_rank, sum_of_others
from parallax_runner.rewrite.routes.alltoall.row_exchange import Exchange, Table
from parallax_runner.rewrite.state import Rewrite

if TYPE_CHECKING:
    from parallax_runner.rewrite.routes.alltoall.over_ranks import OverRanks


@dataclass(frozen=True)
class Wave:
    """Lookups of a step that share one exchange.

    `early[t]` are the rows of table t that arrived before the step. `late` is the part of the exchange that transfers
    the other rows.
    """

    asked: Asked
    early: tuple[tf.Tensor, ...]
    late: Exchange

    def of(self, members: Sequence[int], *, name: str) -> Wave:
        """Returns the wave restricted to the tables `members`."""
        early = tuple(self.early[member] for member in members)
        return Wave(self.asked.of(members, name=name), early, self.late.of(members, name=f"{name}/late"))

    @property
    def tensors(self) -> list[tf.Tensor]:
        """The tensors whose values depend on whether the step's rows were requested in advance."""
        whole, late = self.asked.exchange, self.late
        counts = [each for one in (whole, late) for each in (one.sent_counts, one.arrived_counts)]
        return [*self.asked.places, *self.early, *late.arrived, *whole.asked, *whole.arrived, *counts]


def all_late(asked: Asked) -> Wave:
    """Returns the wave for a step whose rows were not requested in advance, so all of them are late.

    If the rows of a step were requested in advance, the results of that request are fed to the same tensors.
    """
    exchange = asked.exchange
    early = []
    for table in exchange.tables:
        none = tf.zeros([0, *table.row_shape], table.dtype)
        early.append(tf.placeholder_with_default(none, [None, *table.row_shape]))
    late = dataclasses.replace(
        exchange,
        name=f"{exchange.name}/late",
        arrived=tuple(tf.identity(each) for each in exchange.arrived),
        sent_counts=tf.identity(exchange.sent_counts),
        arrived_counts=tf.identity(exchange.arrived_counts),
    )
    return Wave(asked, tuple(early), late)


def rows_of(wave: Wave, buckets: Sequence[Sequence[int]]) -> list[tf.Tensor]:
    """Returns the looked-up rows of the step, by table."""
    _count_early(wave)
    late = arrivals(wave.asked, wave.late, buckets)
    return wave.asked.results([tf.concat(both, axis=0) for both in zip(wave.early, late, strict=True)])


@dataclass(frozen=True)
class Asking:
    """The request for the rows of the next step.

    `early` is the part of the exchange for rows that this step does not write. `first` is fed to the first step, which
    has no previous step, and `later` is fed to every other step.
    """

    asked: Asked
    early: Exchange
    first: Wave
    later: Wave

    @property
    def route(self) -> tuple[tf.Tensor, ...]:
        """The tensors that the exchange of early rows depends on."""
        return (*self.early.arrived, self.early.sent_counts, self.early.arrived_counts)


def ask_for_next(
    rewrite: Rewrite,
    placements: Sequence[OverRanks],
    next_ids: Sequence[tf.Tensor],
    written: Sequence[tf.Tensor],
    *,
    after: Sequence[tf.Operation],
) -> Asking:
    """Requests the rows of the next step, and fetches the rows that this step does not write.

    `written[t]` contains the rows of table t that the step may write, as positions within this rank's own rows. Early
    rows are read after the ops in `after`, which write rows for the previous step.
    """
    asked = ask(rewrite, placements, next_ids, name="next")
    exchange = asked.exchange
    is_late = [
        are_among(places, other, placement.own.rows)
        for places, other, placement in zip(exchange.arrived, written, asked.placements, strict=True)
    ]
    told = dataclasses.replace(
        exchange,
        name=f"{exchange.name}/is_late",
        tables=tuple(Table(table.variable, table.rows, (), tf.uint8) for table in exchange.tables),
        is_exact=True,
    )
    is_late_here = [tf.cast(each, tf.bool) for each in told.from_owners([tf.cast(each, tf.uint8) for each in is_late])]
    ranks = rewrite.plan.workers
    late = dataclasses.replace(
        exchange,
        arrived=tuple(tf.boolean_mask(places, late) for places, late in zip(exchange.arrived, is_late, strict=True)),
        sent_counts=count_by_rank(is_late_here, exchange.sent_counts, ranks),
        arrived_counts=count_by_rank(is_late, exchange.arrived_counts, ranks),
    )
    early = dataclasses.replace(
        exchange,
        name=f"{exchange.name}/early",
        arrived=tuple(tf.boolean_mask(places, ~late) for places, late in zip(exchange.arrived, is_late, strict=True)),
        sent_counts=exchange.sent_counts - late.sent_counts,
        arrived_counts=exchange.arrived_counts - late.arrived_counts,
    )
    with tf.control_dependencies(after):
        come_early = arrivals(asked, early, [range(len(exchange.tables))])
    places = tuple(
        tf.gather(_early_first(late), places) for late, places in zip(is_late_here, asked.places, strict=True)
    )
    return Asking(
        asked, early, all_late(asked), Wave(dataclasses.replace(asked, places=places), tuple(come_early), late)
    )


def _early_first(is_late: tf.Tensor) -> tf.Tensor:
    """Returns the new position of each row (int32 [n]) after all early rows have been moved before all late rows."""
    late = tf.cast(is_late, tf.int32)
    before = tf.cumsum(late, exclusive=True)
    here = tf.range(tf.size(late))
    return tf.where(is_late, tf.size(late) - tf.reduce_sum(late) + before, here - before)


def _count_early(wave: Wave) -> None:
    """Counts the bytes that were sent for this step before the step began: the early rows, and one byte per row that
    marks the row as early or late."""
    whole, late = wave.asked.exchange, wave.late
    rewrite = whole.rewrite
    early = whole.arrived_counts - late.arrived_counts
    for number, (table, rows) in enumerate(zip(whole.tables, wave.early, strict=True)):
        half = half_dtype(rewrite, table.dtype) or table.dtype
        width, dtype_bytes = rows.shape[1:].num_elements(), table.dtype.size
        rewrite.sent += [
            Sent(rows, width * half.size / dtype_bytes, table.variable, sum_of_others(early[:, number], rewrite.rank)),
            Sent(rows, 1 / dtype_bytes, table.variable, sum_of_others(whole.arrived_counts[:, number], rewrite.rank)),
        ]
