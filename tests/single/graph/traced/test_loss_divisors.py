"""The divisors of Keras losses in a traced step, which ranks add up."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.common.masking import set_keras_mask

from parallax_runner.graph.single_device_graph import Divisor, DivisorKind
from parallax_runner.graph.traced.loss_divisors import divisors_in, divisors_marked, with_sums

Y = np.arange(6.0, dtype="float32").reshape(3, 2)


def marked(reduction: str, mask: Any = None) -> tuple[list[DivisorKind], float]:
    """The kinds of marks in a traced loss, and its value."""
    loss = keras.losses.MeanSquaredError(reduction=reduction)

    @tf.function
    def step(y: Any) -> Any:
        predicted = y * 2
        if mask is not None:
            set_keras_mask(predicted, tf.constant(mask))
        with divisors_marked(tf.compat.v1.get_default_graph()):
            return loss(y, predicted)

    concrete = step.get_concrete_function(tf.TensorSpec([None, 2]))
    return [one.kind for one in divisors_in(concrete.graph)], float(concrete(tf.constant(Y)))


@pytest.mark.parametrize(
    ("reduction", "mask", "kinds"),
    [
        ("sum_over_batch_size", None, []),  # divides by the number of examples
        ("sum", None, [DivisorKind.ONE]),
        ("sum_over_batch_size", [True, False, True], [DivisorKind.COUNT]),
    ],
)
def test_marks_leave_the_loss_as_it_is(reduction: str, mask: Any, kinds: list[DivisorKind]) -> None:
    each = (Y**2).mean(axis=1)[[True] * 3 if mask is None else mask]
    assert marked(reduction, mask) == (kinds, pytest.approx(each.sum() if reduction == "sum" else each.mean()))


def test_a_trial_decides_which_losses_are_sums() -> None:
    counted = Divisor("a:0", DivisorKind.COUNT, 0)
    undecided = [Divisor(f"{name}:0", DivisorKind.ONE_IF_SUM, term) for term, name in ((1, "b"), (2, "c"))]
    assert with_sums([counted, *undecided], {2}) == (counted, Divisor("c:0", DivisorKind.ONE, 2))
