"""Pass: aggregate sparse gradients by allgather, for variables that every rank stores whole."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.every_route.merge import merge
from parallax_runner.rewrite.exchange.compression import compress, decompress
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.rewrite.schedule.exchange_groups import apart


@rewrite_pass(writes=["gradients", "replaced", "sent"])
def allgather_sparse_gradients(rewrite: Rewrite) -> None:
    """Replaces each merged sparse gradient with the rows of all ranks. These rows are merged again, and averaged if the
    plan averages sparse gradients.

    If a variable on the allreduce route has sparse and dense gradients, its sparse gradients are gathered too.
    """
    sparse = {variable.name for variable in rewrite.plan.variables if variable.gradient == "sparse"}
    mixed = [one for one in rewrite.gradients_by(Route.ALLREDUCE) if one.variables[0] not in sparse]
    gathered = [one for one in rewrite.gradients_by(Route.ALLGATHER) + mixed if one.indices is not None]
    last: tf.Operation | None = None
    for gradient in (one for together in apart(rewrite, gathered) for one in together):
        assert gradient.indices is not None
        with tf.name_scope(f"allgather/{gradient.name}/"):
            travelling = compress(rewrite, gradient.values)
            rows, ids = _gather(
                gradient.name, travelling, gradient.indices, rewrite.plan.options.use_allgatherv, after=last
            )
            last = rows.op
            values, indices = merge(decompress(rewrite, rows, gradient.values.dtype), ids)
            rewrite.sent += [
                Sent(each, rewrite.plan.replicas - 1, gradient.variables[0]) for each in (travelling, gradient.indices)
            ]
            if rewrite.plan.options.average_sparse:
                values /= tf.cast(rewrite.plan.replicas, values.dtype)
        rewrite.replace_gradient(gradient, values, indices)


def _gather(
    name: str, values: tf.Tensor, indices: tf.Tensor, use_allgatherv: bool, *, after: tf.Operation | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the values and indices of all ranks. The backend matches calls by name, so the order of its calls does
    not matter. MPI's Allgatherv runs after the op `after`."""
    if use_allgatherv:
        from parallax_runner.routes.allgather import allgatherv

        return allgatherv.concat_rows_over_ranks(values, indices, after=after, name="allgatherv")
    from parallax_runner.collectives import ops as collectives

    return (
        collectives.concat_over_ranks(values, name=f"values/{name}"),
        collectives.concat_over_ranks(indices, name=f"indices/{name}"),
    )
