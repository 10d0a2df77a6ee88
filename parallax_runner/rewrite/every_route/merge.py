"""Pass: merge each sparse gradient between the backward pass and the update, in every mode.

Ids become unique and ascending, and rows with the same id are summed. As a result, a norm that the model computes from
an IndexedSlices equals the norm of the gradient, no matter how many ranks there are (docs/correct-step.md).
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.exchange.sum_dtype import added, to_add
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Merged, Rewrite


@rewrite_pass(writes=["gradients", "replaced"])
def merge_sparse_gradients(rewrite: Rewrite) -> None:
    """Inserts merged values and ids between the backward pass and the ops that read them."""
    for gradient in rewrite.gradients:
        if gradient.indices is None:
            continue
        with tf.name_scope(f"merge/{gradient.name}/"):
            indices, positions = ascending(gradient.indices)
            values = sum_by_position(gradient.values, positions, tf.size(indices))
        merged = Merged(gradient.values, positions)
        rewrite.replace_gradient(gradient, values, indices)
        gradient.merged = merged


def merge(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Merges values [n, ...] and indices [n] into values [u, ...] and indices [u] with distinct ascending ids.

    Rows with the same id are summed in the order in which they appear.
    """
    distinct, position = ascending(indices)
    return sum_by_position(values, position, tf.size(distinct)), distinct


def sum_by_position(values: tf.Tensor, positions: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns the sums [rows, ...] of the values [n, ...] with the same position (int32 [n]). Values are added in the
    order in which they appear."""
    merged = added(tf.math.unsorted_segment_sum(to_add(values), positions, rows), values.dtype)
    merged.set_shape(tf.TensorShape([None]).concatenate(values.shape[1:]))
    return merged


def ascending(ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the distinct ids of `ids` [n] in ascending order, and the position of each id among the distinct ids
    (int32 [n])."""
    distinct, position = tf.unique(ids)
    order = tf.argsort(distinct)
    return tf.gather(distinct, order), tf.gather(tf.math.invert_permutation(order), position)
