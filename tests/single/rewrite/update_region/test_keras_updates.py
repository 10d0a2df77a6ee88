"""Updates as Keras' optimizers write them: they run where the rows live, and whole tables do not travel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from tests import keras_updates
from tests.keras_updates import Pairs, as_they_are, clip_each, clip_together
from tests.single.rewrite.one_device import OneDevice, Values, assert_same, batch, graph_of
from tests.single.small_models import FEATURES, ROWS, Features, lookup_model, planned

Clip = Callable[[Pairs], Pairs]
CLIPS: dict[str, Clip] = {"as is": as_they_are, "each": clip_each, "together": clip_together}
FEW, MANY = 100, 10_000


def updated_by(optimizer: str, *, rows: int = ROWS, clip: str = "as is", averages: bool = False) -> SingleDeviceGraph:
    """A table of so many rows and dense weights."""

    def build(features: Features) -> dict[str, Any]:
        loss = tf.reduce_mean(tf.square(lookup_model(features, rows=rows) - features["y"]))
        chosen = keras_updates.Optimizer(optimizer, CLIPS[clip], averages)
        train_op = chosen.apply_gradients(chosen.compute_gradients(loss), tf.train.get_or_create_global_step())
        return {"loss": loss, "train_op": train_op}

    return capture(build, FEATURES, seed=1)


def trained(device: OneDevice, *, ranks: int = 1) -> Values:
    device.initialize()
    for step in range(3):
        device.step([batch(10 * step + rank) for rank in range(ranks)])
    return device.variables()


@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("optimizer", keras_updates.OPTIMIZERS)
def test_servers_update_as_one_device_does(optimizer: str, clip: str, averages: bool) -> None:
    single = updated_by(optimizer, clip=clip, averages=averages)
    expected = trained(graph_of(single, "local"))
    assert any(name.endswith("_average") for name in expected) == averages
    for partitions in (1, 4):
        assert_same(trained(graph_of(single, "ps", partitions=partitions)), expected, 1e-12)


def sent_bytes(single: SingleDeviceGraph, comm: str) -> float:
    """Of rank 0 of two, a step."""
    plan = planned(single, comm, partitions=2)
    device = OneDevice(rewrite_for_rank(single, plan, rank=0, seed=1))
    device.initialize()
    values = batch(0) | {"ids": np.array([1, 1, 4, 5])}
    return float(np.sum(device.session.run(device.there(0, device.ranks[0].sent_bytes), device.fed([values]))))


UPDATES = [
    *((optimizer, "as is", False) for optimizer in keras_updates.OPTIMIZERS),
    *(("adam", clip, False) for clip in ("each", "together")),
    *((optimizer, "as is", True) for optimizer in ("sgd", "adam")),
]


@pytest.mark.parametrize("comm", ["ps", "hybrid", "sharded"])
@pytest.mark.parametrize(("optimizer", "clip", "averages"), UPDATES)
def test_bytes_are_those_of_the_rows_that_a_step_touches(
    optimizer: str, clip: str, averages: bool, comm: str, mirrored: None
) -> None:
    """As with plain descent, but for the parts of a norm."""
    few, many = (
        sent_bytes(updated_by(optimizer, rows=rows, clip=clip, averages=averages), comm) for rows in (FEW, MANY)
    )
    assert few == many
    plain = sent_bytes(updated_by("sgd", rows=MANY), comm)
    parts_of_norms = 64 if clip != "as is" else 0
    assert few <= plain + parts_of_norms
