"""Notes on the losses of a Keras model that are not a mean over the examples of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SUMS = ("sum", "none", None)  # the gradient of a loss without a reduction is the gradient of its sum
MEAN_OF_WEIGHTS = "mean_with_sample_weight"
MEANS = ("sum_over_batch_size", "mean")


def notes_on_losses(model: Any, outputs: Mapping[str, Any], *, is_weighted: bool) -> list[str]:
    """Returns the notes on losses whose value for a whole batch is not the mean of the values for equal parts of it.

    `outputs` are the model's predictions by name. `is_weighted` says whether examples have weights.
    """
    from keras.src.backend import get_keras_mask

    is_masked = any(get_keras_mask(tensor) is not None for tensor in outputs.values())
    reductions = set(_reductions(getattr(model, "_compile_loss", None)))
    notes = []
    if reductions & {*SUMS}:
        notes.append(
            "a loss of the model is a sum over examples. A step uses the mean of the sums of its N replicas, so the "
            "loss and its gradients are N times smaller than in plain Keras. Use reduction='sum_over_batch_size', or "
            "set loss_weights to N"
        )
    if (is_weighted or is_masked) and MEAN_OF_WEIGHTS in reductions:
        notes.append(
            "a loss of the model divides by the sum of weights, and each replica divides by the sum for its own "
            "examples: a step differs from plain Keras if these sums differ. Use reduction='sum_over_batch_size'"
        )
    if is_masked and reductions & {*MEANS}:
        notes.append(
            "a loss of the model is masked, and each replica divides by the number of its own examples or positions "
            "that are not masked: a step differs from plain Keras if these numbers differ. Pass weights of 0 as "
            "sample_weight instead of a mask"
        )
    return notes


def _reductions(compiled: Any) -> list[Any]:
    """Returns the reduction of each loss that was passed to `compile`."""
    from keras.src.losses.loss import Loss

    losses = [getattr(one, "loss", one) for one in getattr(compiled, "_flat_losses", None) or ()]
    return [loss.reduction for loss in losses if isinstance(loss, Loss)]
