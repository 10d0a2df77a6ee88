"""Pass: sparse gradients by allgather, for variables that every rank keeps whole."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.distributed_graph import Rewrite
from parallax_runner.rewrite.merge import merge
from parallax_runner.rewrite.routes import travelling_by


def allgather_sparse_gradients(rewrite: Rewrite) -> None:
    """Replaces each (merged) sparse gradient by all ranks' rows, merged again, and averaged if the plan says so."""
    gradients = travelling_by(rewrite, Route.ALLGATHER) + travelling_by(rewrite, Route.ALLREDUCE)
    for gradient in gradients:
        if gradient.indices is None:
            continue
        from parallax_runner.rewrite import collectives

        with tf.name_scope(f"allgather/{gradient.name}/"):
            values, indices = merge(
                collectives.concat_over_ranks(gradient.values, name=f"values/{gradient.name}"),
                collectives.concat_over_ranks(gradient.indices, name=f"indices/{gradient.name}"),
            )
            if rewrite.plan.average_sparse:
                values /= tf.cast(rewrite.plan.workers, values.dtype)
        rewrite.sent += [(gradient.values, rewrite.plan.workers - 1), (gradient.indices, rewrite.plan.workers - 1)]
        rewrite.replace_gradient(gradient, values, indices)
