"""Defers some gradients: sends them during the next step, because the next step does not touch their rows.

A push has two parts. Gradients of rows that the next step touches are sent now, and all other gradients are deferred.
The owner of a row decides which part a gradient belongs to, because the owner receives the requests of both steps. The
owner sends its decision to the ranks that push gradients of the row. The preparation of the next step (`ask_ahead`)
computes the decision and passes it to the running step through a queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.exchange.compression import half_dtype
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.routes.alltoall.by_table import ByTable, cut
from parallax_runner.rewrite.routes.alltoall.marks import are_requested, sums_of_others
from parallax_runner.rewrite.routes.alltoall.row_exchange import Exchange


@dataclass(frozen=True)
class Push:
    """One exchange of gradients in two parts.

    `is_now` (bool) marks the rows that are sent now, among the rows that this rank sends. The marks come from `queue`.
    Each element of the queue contains the marks of the rows that this rank sends, and the marks of the rows that arrive
    (bool, ordered by table). `alone` (int32, 1 if not fed) is 0 if the preparation of the next step fills the queue.
    `behind` is the exchange of the deferred gradients. `goes_behind` tells which tables' gradients may be deferred.
    """

    whole: Exchange
    is_now: ByTable
    now: Exchange
    behind: Exchange
    goes_behind: tuple[bool, ...]
    queue: tf.FIFOQueue
    alone: tf.Tensor

    def tell(self, following: Exchange) -> tf.Operation:
        """Creates an op that marks the rows that the next step requests through `following`, and passes the marks to
        this step's push. This is a collective: all ranks must run the op."""
        whole = self.whole
        stays = tf.gather(tf.constant([not one for one in self.goes_behind]), whole.own.numbers)
        arrive_now = are_requested(whole, [following]) | stays
        sent_now = whole.marks_from_owners(arrive_now, name=f"{whole.name}/is_now")
        return self.queue.enqueue([_longer(sent_now), _longer(arrive_now)])

    def rows_now(self, rows: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the rows of each table that are sent now."""
        return [tf.boolean_mask(each, marks) for each, marks in zip(rows, self.is_now.parts, strict=True)]

    def rows_behind(self, rows: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the rows of each table whose gradients are deferred."""
        return [tf.boolean_mask(each, ~marks) for each, marks in zip(rows, self.is_now.parts, strict=True)]


def _longer(marks: tf.Tensor) -> tf.Tensor:
    """Adds a mark that is never read: TensorFlow 2.21 crashes when many empty elements are enqueued at once."""
    return tf.concat([marks, [True]], axis=0)


def in_two_parts(exchange: Exchange, goes_behind: Sequence[bool], alone: tf.Tensor) -> Push:
    """Splits a push into two parts. The owners must already have received the ids of `exchange`. If no step follows,
    all rows are sent now."""
    queue = tf.FIFOQueue(2, [tf.bool, tf.bool], name="is_now")
    all_now = [tf.ones_like(one.ranks.whole, tf.bool) for one in (exchange.sent, exchange.arrived)]
    fill = queue.enqueue_many([tf.tile(_longer(each)[tf.newaxis], [alone, 1]) for each in all_now])
    with tf.control_dependencies([fill]):
        sent, arrive = (tf.ensure_shape(each, [None])[:-1] for each in queue.dequeue())
    now = exchange.part(sent, arrive, name=f"{exchange.name}/now")
    behind = exchange.part(~sent, ~arrive, name=f"{exchange.name}/behind")
    is_now = cut(sent, exchange.sent.ranks.lengths)
    return Push(exchange, is_now, now, behind, tuple(goes_behind), queue, alone)


def count_bytes_behind(push: Push, gradients: Sequence[tf.Tensor]) -> None:
    """Counts the bytes for deferred gradients: the gradients themselves, and one byte per row that marks when the row's
    gradient is sent."""
    rewrite = push.whole.rewrite
    behind = sums_of_others(push.behind.sent.counts, rewrite.rank)
    answers = sums_of_others((1 - push.alone) * push.whole.arrived.counts, rewrite.rank)
    for table, values, rows, marks in zip(push.whole.tables, gradients, behind, answers, strict=True):
        half = half_dtype(rewrite, table.dtype) or table.dtype
        width, dtype_bytes = values.shape[1:].num_elements(), table.dtype.size
        rewrite.sent += [
            Sent(values, width * half.size / dtype_bytes, table.variable, rows),
            Sent(values, 1 / dtype_bytes, table.variable, marks),
        ]
