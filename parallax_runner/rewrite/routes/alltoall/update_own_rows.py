"""Pass for variables that are spread over the ranks: send gradients to the owners of the rows, which update these rows.

Every rank runs the same update on its own rows. A result over all rows, such as a norm, is summed over the ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.update_region.contents import Ids, Rows
from parallax_runner.analysis.update_region.row_list import GradientList
from parallax_runner.graph import edit
from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.routes.alltoall.add_up import merge_message
from parallax_runner.rewrite.routes.alltoall.behind import Push, count_bytes_behind, in_two_parts
from parallax_runner.rewrite.routes.alltoall.by_table import cut
from parallax_runner.rewrite.routes.alltoall.known_ids import known_ids_of, reuse_positions
from parallax_runner.rewrite.routes.alltoall.later_update import CarriedPush, LaterUpdate, UpdateCopies, carry
from parallax_runner.rewrite.routes.alltoall.lookup import table_of
from parallax_runner.rewrite.routes.alltoall.own_rows import over_ranks
from parallax_runner.rewrite.routes.alltoall.request import ask_owners, keys_of
from parallax_runner.rewrite.routes.alltoall.row_exchange import Exchange, Message
from parallax_runner.rewrite.schedule.buckets import buckets_to_owners
from parallax_runner.rewrite.state import RankGradient, Rewrite
from parallax_runner.rewrite.update_region.sharded_update import ShardedUpdate
from parallax_runner.rewrite.update_region.sharded_value import ShardedValue


@rewrite_pass(
    reads=["placements", "known_ids"],
    writes=["train_op", "gradients", "replaced", "sent", "row_orders", "behind"],
)
def update_own_rows(rewrite: Rewrite) -> None:
    """Makes each rank sum or average the gradients of all ranks for its own rows, and update these rows."""
    gradients = rewrite.gradients_by(Route.ALLTOALL)
    if not gradients:
        return
    values: dict[str, ShardedValue] = {}
    pushes: list[tuple[Push, list[RankGradient]]] = []
    alone = tf.placeholder_with_default(tf.constant(1), [], name="no_step_follows")
    for number, together in enumerate(buckets_to_owners(rewrite, gradients)):
        with tf.name_scope(f"push_{number}/"):
            exchange, push = _exchange(rewrite, together, alone, name=f"push_{number}")
            rows = [gradient.values for gradient in together]
            arrived = exchange.to_owners(rows if push is None else push.rows_now(rows))
            values |= _aggregates(rewrite, together, arrived, exchange)
            if push is not None:
                pushes.append((push, together))
    update = ShardedUpdate(rewrite=rewrite, values=values)
    update.visit_region()
    if rewrite.train_op in update.copies:
        rewrite.train_op = tf.group(*update.copies[rewrite.train_op])
    if pushes:
        with tf.name_scope("behind/"):
            rewrite.behind = _apply_later(rewrite, pushes, values, alone)


def _exchange(
    rewrite: Rewrite, gradients: list[RankGradient], alone: tf.Tensor, *, name: str
) -> tuple[Exchange, Push | None]:
    """Returns the exchange for gradients that are sent within the step, and the push if some gradients are deferred."""
    known = known_ids_of(rewrite, gradients)
    if known is None:
        tables = [table_of(over_ranks(rewrite, gradient.variables[0])) for gradient in gradients]
        ids = [gradient.indices for gradient in gradients if gradient.indices is not None]
        return ask_owners(rewrite, tables, keys_of(tables, ids, rewrite.plan.workers), name=name), None
    for gradient, one in zip(gradients, known, strict=True):
        reuse_positions(rewrite, gradient, one)
    exchange = known[0].asked.exchange.of([one.number for one in known], name=name)
    behind = {variable.name for variable in rewrite.plan.by_route(Route.ALLTOALL) if variable.is_behind}
    goes_behind = [gradient.variables[0] in behind for gradient in gradients]
    if not any(goes_behind):
        return exchange, None
    push = in_two_parts(exchange, goes_behind, alone)
    count_bytes_behind(push, [gradient.values for gradient in gradients])
    return push.now, push


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


def _apply_later(
    rewrite: Rewrite,
    pushes: Sequence[tuple[Push, list[RankGradient]]],
    values: Mapping[str, ShardedValue],
    alone: tf.Tensor,
) -> LaterUpdate:
    """Builds the updates of the rows whose gradients are deferred."""
    carried: list[CarriedPush] = []
    stands_for: dict[str, tf.Tensor] = {}
    behind: list[str] = []
    for push, gradients in pushes:
        carried.append(carry(push, [gradient.values for gradient in gradients]))
        later = _aggregates(rewrite, gradients, carried[-1].arrive(), carried[-1].exchange)
        stands_for |= {values[name].parts[0].name: value.parts[0] for name, value in later.items()}
        goes_behind = zip(gradients, push.goes_behind, strict=True)
        behind += [gradient.variables[0] for gradient, is_behind in goes_behind if is_behind]
    copies = UpdateCopies(stands_for)
    apply = tf.group(*copies.of(_writes_of(rewrite, behind)), name="apply")
    return LaterUpdate(tuple(push for push, _ in pushes), tuple(carried), tuple(copies.numbers), apply, alone)


def _writes_of(rewrite: Rewrite, variables: Iterable[str]) -> set[tf.Operation]:
    """Finds the ops of a step that write this rank's rows of the variables and their slots."""
    step = edit.ancestors([rewrite.train_op])
    planned = {one.name: one for one in rewrite.plan.by_route(Route.ALLTOALL)}
    names = [name for variable in variables for name in (variable, *planned[variable].slots)]
    readers = (op for name in names for op in over_ranks(rewrite, name).own.handle.consumers())
    return {op for op in readers if edit.is_write(op) and op in step}
