"""Pass: multiply each raw gradient by the replica's share of the step's examples.

The mean over the replicas is then the mean over all examples of the step, although the replicas have different numbers
of examples (docs/design/0084).
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite


@rewrite_pass(writes=["gradients", "replaced"])
def weigh_by_share(rewrite: Rewrite) -> None:
    """Inserts the products between the backward pass and the ops that read the gradients."""
    if rewrite.share is None:
        return
    for gradient in rewrite.gradients:
        with tf.name_scope(f"share/{gradient.name}/"):
            values = weighed(gradient.values, rewrite.share)
        rewrite.replace_gradient(gradient, values, gradient.indices)


def weighed(value: tf.Tensor, share: tf.Tensor | None) -> tf.Tensor:
    """Returns `value` times the share of a replica, in the dtype of `value`. The product with a share of 0 is 0, even
    if the value is not finite. Without a share, returns `value`."""
    if share is None:
        return value
    return tf.raw_ops.MulNoNan(x=value, y=tf.cast(share, value.dtype))


def if_any_example(value: tf.Tensor, share: tf.Tensor | None) -> tf.Tensor:
    """Returns `value`, or zeros if the replica has no example in this step."""
    if share is None:
        return value
    return tf.where(share > 0, value, tf.zeros_like(value))
