"""Pass: send gradients of variables that are spread over the ranks to the owners of their rows, which update them.

Every rank runs the same update on its own rows. A result over all rows, such as a norm, is summed over the ranks.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.update_region.contents import Ids, Rows
from parallax_runner.analysis.update_region.row_list import GradientList
from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.every_route.merge import merge
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.routes.alltoall.known_ids import exchange_of_known_ids
from parallax_runner.rewrite.routes.alltoall.lookup import table_of
from parallax_runner.rewrite.routes.alltoall.own_rows import over_ranks
from parallax_runner.rewrite.routes.alltoall.row_exchange import ask_owners
from parallax_runner.rewrite.schedule.buckets import buckets_to_owners
from parallax_runner.rewrite.state import RankGradient, Rewrite
from parallax_runner.rewrite.update_region.sharded_update import ShardedUpdate
from parallax_runner.rewrite.update_region.sharded_value import ShardedValue


@rewrite_pass(reads=["gradients", "placements", "known_ids"], writes=["train_op", "sent", "row_orders"])
def update_own_rows(rewrite: Rewrite) -> None:
    """Makes each rank apply the mean (or sum) over ranks of the gradients to the rows that it owns."""
    gradients = rewrite.gradients_by(Route.ALLTOALL)
    if not gradients:
        return
    values: dict[str, ShardedValue] = {}
    for number, together in enumerate(buckets_to_owners(rewrite, gradients)):
        with tf.name_scope(f"push_{number}/"):
            values |= _send(rewrite, together, name=f"push_{number}")
    update = ShardedUpdate(rewrite=rewrite, values=values)
    update.visit_region()
    if rewrite.train_op in update.copies:
        rewrite.train_op = tf.group(*update.copies[rewrite.train_op])


def _send(rewrite: Rewrite, gradients: list[RankGradient], *, name: str) -> dict[str, ShardedValue]:
    """Sends gradients to the owners of their rows. Returns the aggregates of this rank's own rows, by tensor name."""
    exchange = exchange_of_known_ids(rewrite, gradients, name=name)
    if exchange is None:
        tables = [table_of(over_ranks(rewrite, gradient.variables[0])) for gradient in gradients]
        ids = [gradient.indices for gradient in gradients if gradient.indices is not None]
        exchange = ask_owners(rewrite, tables, ids, name=name)
    arrived = exchange.to_owners([gradient.values for gradient in gradients])
    found = {}
    for gradient, rows, own_ids in zip(gradients, arrived, exchange.arrived, strict=True):
        assert gradient.indices is not None
        total, merged_ids = merge(rows, own_ids)
        mean = total / tf.cast(rewrite.plan.replicas, total.dtype) if rewrite.plan.options.average_sparse else total
        placement, rows_of = over_ranks(rewrite, gradient.variables[0]), GradientList(gradient.name)
        places = tf.cast(merged_ids, gradient.indices.dtype)
        found[gradient.values.name] = ShardedValue((mean,), placement, Rows(rows_of))
        found[gradient.indices.name] = ShardedValue((places,), placement, Ids(rows_of))
    return found
