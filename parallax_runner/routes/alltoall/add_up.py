"""Adds up the gradients that arrive at the owner of their rows."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.collectives.chosen import backend
from parallax_runner.rewrite.every_route.merge import ascending, sum_by_position
from parallax_runner.routes.alltoall.by_table import ByTable, count, cut, numbers_of_keys, of_numbers
from parallax_runner.routes.alltoall.request import first_rows
from parallax_runner.routes.alltoall.row_exchange import Exchange, Message


def merge_message(message: Message, exchange: Exchange) -> tuple[ByTable, ByTable]:
    """Merges rows that arrived through `exchange`. Returns the sums, and their positions within this rank's own rows.
    The positions are distinct and ascending in each table.

    Rows with the same position are summed in rank order.
    """
    own = exchange.own.of(message.members)
    kernels = backend().row_kernels()
    if kernels is not None:
        rows, ids, lengths = kernels.sum_arrived(message.rows, message.places.whole, own.whole, own.lengths)
        rows.set_shape([None, *message.rows.shape[1:]])
        return cut(rows, lengths), cut(ids, lengths)
    starts = first_rows([exchange.tables[member] for member in message.members], exchange.rewrite.plan.workers)
    keys, positions = ascending(own.whole + of_numbers(starts[:-1], own.numbers, own.whole.dtype))
    in_message = tf.dynamic_stitch([message.places.whole], [positions])
    numbers = numbers_of_keys(keys, starts)
    lengths = count(numbers, len(message.members))
    sums = cut(sum_by_position(message.rows, in_message, tf.size(keys)), lengths)
    return sums, cut(keys - of_numbers(starts[:-1], numbers, keys.dtype), lengths)
