"""Variables that declare «sum» or «mean» have at the end of a step what all ranks have added, or its mean."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

from tests.single.rewrite.one_device import batch, graph_of
from tests.single.small_models import BATCH, Features, captured, lookup_model


def _declaring(features: Features) -> tf.Tensor:
    """The model, with a count of examples, and a number to which each rank adds the largest x of its batch."""
    kinds = {"seen": tf.VariableAggregation.SUM, "moved": tf.VariableAggregation.MEAN}
    made = {
        name: tf.get_variable(
            name, [], tf.float64, tf.ones_initializer(), trainable=False, aggregation=kind, use_resource=True
        )
        for name, kind in kinds.items()
    }
    seen = made["seen"].assign_add(BATCH, read_value=False)
    moved = made["moved"].assign_add(tf.reduce_max(features["x"]), read_value=False)
    with tf.control_dependencies([seen, moved]):
        return lookup_model(features) + 0.0


def test_ranks_add_up_what_declares_sum_and_average_what_declares_mean() -> None:
    device = graph_of(captured(_declaring), "ps", workers=2)
    device.initialize()
    steps = [[batch(2 * step + rank) for rank in range(2)] for step in range(2)]
    expected = 1.0
    for step, batches in enumerate(steps, start=1):
        device.step(batches)
        expected += np.mean([values["x"].max() for values in batches])
        for rank in range(2):
            found = device.variables(rank)
            assert found["seen"] == 1 + 2 * BATCH * step
            np.testing.assert_allclose(found["moved"], expected, rtol=1e-12)
