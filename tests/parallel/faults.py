"""Faults planted into a distributed step: the comparison must find each."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.every_route.merge import merge_sparse_gradients
from parallax_runner.rewrite.rewrite_pass import RewritePass, rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite


def passes_with(fault: str | None, passes: tuple[RewritePass, ...]) -> tuple[RewritePass, ...]:
    """Returns the product's passes, with a harmful one after the merging of gradients."""
    harm = {
        "divide_twice": divide_twice,
        "drop_a_rank": drop_a_rank,
        "clip_before_aggregating": clip_before_aggregating,
    }.get(fault or "")
    if harm is None:
        return passes
    place = passes.index(merge_sparse_gradients) + 1
    return (*passes[:place], harm, *passes[place:])


@rewrite_pass(writes=["gradients", "replaced"])
def divide_twice(rewrite: Rewrite) -> None:
    """Makes every rank divide by the number of ranks, before the mean does."""
    for gradient in rewrite.gradients:
        rewrite.replace_gradient(gradient, gradient.values / rewrite.plan.replicas, gradient.indices)


@rewrite_pass(writes=["gradients", "replaced"])
def drop_a_rank(rewrite: Rewrite) -> None:
    """Makes the last rank contribute nothing."""
    if rewrite.rank == rewrite.plan.replicas - 1:
        for gradient in rewrite.gradients:
            # Made from the gradient, because exchanges rely on it being ready at the same time on all ranks.
            rewrite.replace_gradient(gradient, gradient.values * 0.0, gradient.indices)


@rewrite_pass(writes=["gradients", "replaced"])
def clip_before_aggregating(rewrite: Rewrite) -> None:
    """Makes each rank clip its own gradients; the model's clipping of the mean then has no effect."""
    clipped, _ = tf.clip_by_global_norm([gradient.values for gradient in rewrite.gradients], 0.3)
    for gradient, values in zip(rewrite.gradients, clipped, strict=True):
        rewrite.replace_gradient(gradient, values, gradient.indices)
