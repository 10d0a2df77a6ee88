"""The rows of a step in two parts: the rows that arrived before the step began, and the other rows.

While step t runs, each rank requests the rows of step t+1 from their owners (lookahead_request.py). A row that step t
does not write is final, so its owner sends the row immediately: the row is early. All other rows are late, and arrive
when step t+1 begins. If nothing is fed, a step requests its rows when it runs, and treats all rows as late. If the rows
were requested during the previous step, the results of that request are fed to the step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.exchange.compression import half_dtype
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.routes.alltoall.by_table import ByTable, cut, is_all, joined
from parallax_runner.routes.alltoall.lookup import Asked, arrivals
from parallax_runner.routes.alltoall.row_exchange import Exchange, Side, alike, side


@dataclass(frozen=True)
class Wave:
    """Lookups of a step that share one exchange.

    `early` contains the rows that arrived before the step, for each group of `alike` tables. `late` is the part of the
    exchange that transfers the other rows. For each id of a table, `places` (int32) contains the position of its row
    among the table's early rows, followed by its late rows.
    """

    asked: Asked
    early: tuple[ByTable, ...]
    late: Exchange
    places: ByTable

    def of(self, members: Sequence[int], *, name: str) -> Wave:
        """Returns the wave restricted to the tables `members`."""
        if is_all(members, len(self.asked.ids)):
            return self
        early = self.early_rows
        asked = self.asked.of(members, name=name)
        groups = [[early[members[number]] for number in group] for group in alike(asked.exchange.tables)]
        late = self.late.of(members, name=f"{name}/late")
        return Wave(asked, tuple(joined(rows) for rows in groups), late, self.places.of(members))

    @property
    def early_rows(self) -> list[tf.Tensor]:
        """The early rows of each table."""
        found: dict[int, tf.Tensor] = {}
        for members, rows in zip(alike(self.asked.exchange.tables), self.early, strict=True):
            found |= dict(zip(members, rows.parts, strict=True))
        return [found[table] for table in range(len(found))]

    @property
    def tensors(self) -> list[tf.Tensor]:
        """The tensors whose values depend on whether the step's rows were requested in advance."""
        asked, whole, late = self.asked, self.asked.exchange, self.late
        sides = [each for one in (whole, late) for each in (one.sent, one.arrived)]
        rows = [asked.distinct, asked.positions, self.places, *self.early, whole.own, late.own]
        return [*(each.whole for each in (*rows, *(one.ranks for one in sides))), *(one.counts for one in sides)]


def all_late(asked: Asked) -> Wave:
    """Returns the wave in which all rows of a step are late, which is correct if no row was requested in advance.

    If the rows of a step were requested in advance, the results of that request are fed to the same tensors.
    """
    exchange = asked.exchange
    sent, arrived = _same(exchange.sent), _same(exchange.arrived)
    own = cut(tf.identity(exchange.own.whole), arrived.ranks.lengths)
    late = dataclasses.replace(exchange, name=f"{exchange.name}/late", sent=sent, arrived=arrived, own=own)
    early_lengths = exchange.sent.ranks.lengths - sent.ranks.lengths
    early = []
    for members in alike(exchange.tables):
        table = exchange.tables[members[0]]
        none = tf.zeros([0, *table.row_shape], table.dtype)
        rows = tf.placeholder_with_default(none, [None, *table.row_shape])
        early.append(cut(rows, tf.gather(early_lengths, members)))
    return Wave(asked, tuple(early), late, cut(tf.identity(asked.positions.whole), asked.positions.lengths))


def _same(one: Side) -> Side:
    """Returns a copy of a side. Different values can be fed to the copy's tensors."""
    return side(tf.identity(one.ranks.whole), tf.identity(one.counts))


def rows_of(wave: Wave, buckets: Sequence[Sequence[int]]) -> list[tf.Tensor]:
    """Returns the looked-up rows of the step, by table."""
    _count_early(wave)
    late = arrivals(wave.asked, wave.late, buckets)
    rows = (tf.concat([early, came.in_order()], axis=0) for early, came in zip(wave.early_rows, late, strict=True))
    return [
        wave.asked.result(table, each, places)
        for table, (each, places) in enumerate(zip(rows, wave.places.parts, strict=True))
    ]


def _count_early(wave: Wave) -> None:
    """Counts the bytes that were sent for this step before the step began: the early rows, and one byte per row that
    marks the row as early or late."""
    whole, late = wave.asked.exchange, wave.late
    rewrite = whole.rewrite
    early = _sums_of_others(whole.arrived.counts - late.arrived.counts, rewrite.rank)
    asked = _sums_of_others(whole.arrived.counts, rewrite.rank)
    for table, rows, early_rows, marks in zip(whole.tables, wave.early_rows, early, asked, strict=True):
        half = half_dtype(rewrite, table.dtype) or table.dtype
        width, dtype_bytes = rows.shape[1:].num_elements(), table.dtype.size
        rewrite.sent += [
            Sent(rows, width * half.size / dtype_bytes, table.variable, early_rows),
            Sent(rows, 1 / dtype_bytes, table.variable, marks),
        ]


def _sums_of_others(counts: tf.Tensor, rank: int) -> list[tf.Tensor]:
    """Sums the counts [ranks, tables] of the other ranks, by table."""
    return tf.unstack(tf.reduce_sum(counts, axis=0) - counts[rank], num=counts.shape[1])
