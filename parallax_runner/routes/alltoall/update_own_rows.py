"""Passes for variables that are spread over the ranks: send gradients to the owners of the rows, which update these
rows.

Every rank runs the same update on its own rows. A result over all rows, such as a norm, is summed over the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.update_region.contents import Ids, Rows
from parallax_runner.analysis.update_region.row_list import GradientList
from parallax_runner.collectives.chosen import backend
from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import RankGradient, Rewrite
from parallax_runner.rewrite.schedule.buckets import buckets_to_owners
from parallax_runner.rewrite.update_region.sharded_value import ShardedValue
from parallax_runner.routes.alltoall.add_up import merge_message
from parallax_runner.routes.alltoall.by_table import cut
from parallax_runner.routes.alltoall.known_ids import known_ids_of, reuse_positions
from parallax_runner.routes.alltoall.lookup import table_of
from parallax_runner.routes.alltoall.own_rows import over_ranks
from parallax_runner.routes.alltoall.request import ask_owners, keys_of
from parallax_runner.routes.alltoall.row_exchange import Exchange, Message


@rewrite_pass(
    reads=["placements", "AlltoallState.known_ids"],
    writes=["aggregates", "gradients", "replaced", "sent"],
)
def send_to_owners(rewrite: Rewrite) -> None:
    """Makes each rank sum or average the gradients of all ranks for its own rows."""
    gradients = rewrite.gradients_by(Route.ALLTOALL)
    if not gradients:
        return
    for number, together in enumerate(buckets_to_owners(rewrite, gradients)):
        with tf.name_scope(f"push_{number}/"):
            exchange = _exchange(rewrite, together, name=f"push_{number}")
            arrived = _send(exchange, together)
            rewrite.aggregates |= _aggregates(rewrite, together, arrived, exchange)


@rewrite_pass(reads=["update"], writes=["train_op"])
def update_own_rows(rewrite: Rewrite) -> None:
    """Makes each rank run all copies of the train op, if the train op itself updates a variable. If there are servers,
    their pass has done so."""
    update = rewrite.update
    if update is not None and rewrite.train_op in update.copies:
        rewrite.train_op = tf.group(*update.copies[rewrite.train_op])


def _exchange(rewrite: Rewrite, gradients: list[RankGradient], *, name: str) -> Exchange:
    """Returns the exchange that sends the gradients to the owners of their rows."""
    known = known_ids_of(rewrite, gradients)
    if known is None:
        tables = [table_of(over_ranks(rewrite, gradient.variables[0])) for gradient in gradients]
        ids = [gradient.indices for gradient in gradients if gradient.indices is not None]
        return ask_owners(rewrite, tables, keys_of(tables, ids, rewrite.plan.workers), name=name)
    for gradient, one in zip(gradients, known, strict=True):
        reuse_positions(rewrite, gradient, one)
    return known[0].asked.exchange.of([one.number for one in known], name=name)


def _send(exchange: Exchange, gradients: Sequence[RankGradient]) -> list[Message]:
    """Sends the merged rows of the gradients to their owners. A kernel merges them into the message."""
    kernels = backend().row_kernels()
    merged = [gradient.merged for gradient in gradients]
    if kernels is None or None in merged:
        return exchange.to_owners([gradient.values for gradient in gradients])
    sums = [one for one in merged if one is not None]
    return exchange.sums_to_owners(kernels, [one.addends for one in sums], [one.positions for one in sums])


def _aggregates(
    rewrite: Rewrite, gradients: list[RankGradient], messages: Sequence[Message], exchange: Exchange
) -> dict[str, ShardedValue]:
    """Merges the gradients that arrived for this rank's own rows. Returns the aggregates by tensor name."""
    found = {}
    for message in messages:
        total, merged_ids = merge_message(message, exchange)
        if rewrite.plan.options.average_sparse:
            total = cut(total.whole / tf.cast(rewrite.plan.replicas, total.whole.dtype), total.lengths)
        for number, rows, ids in zip(message.members, total.parts, merged_ids.parts, strict=True):
            gradient = gradients[number]
            assert gradient.indices is not None
            placement, rows_of = over_ranks(rewrite, gradient.variables[0]), GradientList(gradient.name)
            places = tf.cast(ids, gradient.indices.dtype)
            found[gradient.values.name] = ShardedValue((rows,), placement, Rows(rows_of))
            found[gradient.indices.name] = ShardedValue((places,), placement, Ids(rows_of))
    return found
