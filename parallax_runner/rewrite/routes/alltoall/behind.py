"""Sends some gradients behind their step (during the next step), because the next step does not touch their rows.

A push has two parts. Gradients of rows that the next step touches are sent now, and all other gradients are sent behind
the step. The owner of a row decides which part a gradient belongs to, because the owner receives the requests of both
steps. The owner sends its decision to the ranks that send gradients of the row. The preparation of the next step
(`ask_ahead`) computes the decision and passes it to the running step through a queue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.exchange.compression import half_dtype
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.routes.alltoall.marks import are_among, count_by_rank, sum_of_others
from parallax_runner.rewrite.routes.alltoall.row_exchange import Exchange, Table


@dataclass(frozen=True)
class Push:
    """One exchange of gradients in two parts.

    `queue` contains marks (bool) for the rows that are sent now. Each element contains one tensor per table for the
    rows that this rank sends ([rows sent], ordered by owner), and then one tensor per table for the rows that arrive
    ([rows that arrive], ordered by sender). `alone` (int32, 1 if not fed) is 0 if the preparation of a next step fills
    the queue.
    """

    whole: Exchange
    now: Exchange
    behind: Exchange
    goes_behind: tuple[bool, ...]
    queue: tf.FIFOQueue
    alone: tf.Tensor

    def tell(self, next_touched: Mapping[str, tf.Tensor]) -> tf.Operation:
        """Creates an op that marks the rows that the next step touches, and passes the marks to this step's push.

        `next_touched` maps a variable to the positions of these rows within this rank's own rows. This is a collective:
        all ranks must run the op.
        """
        whole = self.whole
        arrive_now = [
            are_among(places, next_touched[table.variable], own_rows(table, whole))
            if goes_behind
            else tf.ones_like(places, tf.bool)
            for places, table, goes_behind in zip(whole.arrived, whole.tables, self.goes_behind, strict=True)
        ]
        answers = dataclasses.replace(
            whole,
            name=f"{whole.name}/is_now",
            tables=tuple(Table(table.variable, table.rows, (), tf.uint8) for table in whole.tables),
            is_exact=True,
        )
        came = answers.from_owners([tf.cast(each, tf.uint8) for each in arrive_now])
        return self.queue.enqueue([_longer(each) for each in (*(tf.cast(each, tf.bool) for each in came), *arrive_now)])


def _longer(marks: tf.Tensor) -> tf.Tensor:
    """Adds a mark that is never read: TensorFlow 2.21 crashes when many empty elements are enqueued at once."""
    return tf.concat([marks, [True]], axis=0)


def own_rows(table: Table, exchange: Exchange) -> int:
    """Counts the rows of a table that this rank owns."""
    rewrite = exchange.rewrite
    return len(range(rewrite.rank, table.rows, rewrite.plan.workers))


def in_two_parts(exchange: Exchange, goes_behind: Sequence[bool], alone: tf.Tensor) -> Push:
    """Splits a push into two parts. The owners must already have received the ids of `exchange`. If no step follows,
    all rows are sent now."""
    tables = len(exchange.tables)
    queue = tf.FIFOQueue(2, [tf.bool] * (2 * tables), name="is_now")
    all_now = [tf.ones_like(each, tf.bool) for each in (*exchange.asked, *exchange.arrived)]
    fill = queue.enqueue_many([tf.tile(_longer(each)[tf.newaxis], [alone, 1]) for each in all_now])
    with tf.control_dependencies([fill]):
        marks = [tf.ensure_shape(each, [None])[:-1] for each in queue.dequeue()]
    sent, arrive = marks[:tables], marks[tables:]
    now = part_of(exchange, sent, arrive, name=f"{exchange.name}/now")
    behind = part_of(exchange, [~each for each in sent], [~each for each in arrive], name=f"{exchange.name}/behind")
    return Push(exchange, now, behind, tuple(goes_behind), queue, alone)


def part_of(exchange: Exchange, sent: Sequence[tf.Tensor], arrive: Sequence[tf.Tensor], *, name: str) -> Exchange:
    """Returns the part of an exchange for marked rows: the marked rows that this rank sends, and the marked rows that
    it receives."""
    ranks = exchange.rewrite.plan.workers
    return dataclasses.replace(
        exchange,
        name=name,
        asked=tuple(tf.boolean_mask(each, marks) for each, marks in zip(exchange.asked, sent, strict=True)),
        arrived=tuple(tf.boolean_mask(each, marks) for each, marks in zip(exchange.arrived, arrive, strict=True)),
        sent_counts=count_by_rank(sent, exchange.sent_counts, ranks),
        arrived_counts=count_by_rank(arrive, exchange.arrived_counts, ranks),
    )


def count_bytes_behind(push: Push, gradients: Sequence[tf.Tensor]) -> None:
    """Counts the bytes that are sent behind a step: the gradients, and one byte per row that marks when the row's
    gradient is sent."""
    rewrite = push.whole.rewrite
    follows = 1 - push.alone
    for number, (table, values) in enumerate(zip(push.whole.tables, gradients, strict=True)):
        half = half_dtype(rewrite, table.dtype) or table.dtype
        width, dtype_bytes = values.shape[1:].num_elements(), table.dtype.size
        rows = sum_of_others(push.behind.sent_counts[:, number], rewrite.rank)
        answers = follows * sum_of_others(push.whole.arrived_counts[:, number], rewrite.rank)
        rewrite.sent += [
            Sent(values, width * half.size / dtype_bytes, table.variable, rows),
            Sent(values, 1 / dtype_bytes, table.variable, answers),
        ]
