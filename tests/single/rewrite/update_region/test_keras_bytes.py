"""What a step of a Keras optimizer sends: rows that the step touches, whatever the optimizer does to the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from tests.single.graph.traced.test_row_updates import FEW, MANY, captured
from tests.single.rewrite.one_device import OneDevice
from tests.single.small_models import planned

optimizers = keras.optimizers
# A step also sends a few numbers for a norm, or for whether all values are finite. Their number does not depend on the
# batch, and they are far less than a tenth of the rows' bytes in a batch of this size.
BATCH = 64
VALUES = {
    "ids": np.random.default_rng(7).integers(0, FEW, BATCH).astype(np.int32),
    "y": np.random.default_rng(8).normal(size=BATCH),
}


def sent_bytes(single: SingleDeviceGraph, comm: str) -> float:
    """Of rank 0 of two, a step."""
    device = OneDevice(rewrite_for_rank(single, planned(single, comm, partitions=2), rank=0, seed=1))
    device.initialize()
    return float(np.sum(device.session.run(device.there(0, device.ranks[0].sent_bytes), device.fed([VALUES]))))


@pytest.fixture(scope="module")
def of_sgd() -> dict[str, float]:
    return {}


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": optimizers.Adam,
    "adagrad": optimizers.Adagrad,
    "momentum": lambda: optimizers.SGD(momentum=0.9),
    "ema": lambda: optimizers.Adam(use_ema=True),
    "clipnorm": lambda: optimizers.Adam(clipnorm=0.1),
    "global_clipnorm": lambda: optimizers.Adam(global_clipnorm=0.1),
    "accumulation": lambda: optimizers.Adam(gradient_accumulation_steps=2),
    "loss_scale": lambda: optimizers.LossScaleOptimizer(optimizers.Adam()),
}
# The default tier has each optimizer once, and each mode with two of them.
BASIC = {
    *(("mpi", "momentum"), ("mpi", "accumulation"), ("ps", "adagrad"), ("ps", "ema")),
    *(("hybrid", "clipnorm"), ("hybrid", "loss_scale"), ("sharded", "adam"), ("sharded", "global_clipnorm")),
}


def cases() -> list[Any]:
    """Returns every optimizer in every mode."""
    return [
        pytest.param(comm, made, id=f"{'' if (comm, name) in BASIC else 'more-'}{name}-{comm}")
        for name, made in OPTIMIZERS.items()
        for comm in ("mpi", "ps", "hybrid", "sharded")
    ]


@pytest.mark.usefixtures("mirrored")
@pytest.mark.parametrize(("comm", "made"), cases())
def test_bytes_are_those_of_sgd_and_do_not_grow_with_the_table(
    comm: str, made: Callable[[], Any], of_sgd: dict[str, float]
) -> None:
    if comm not in of_sgd:
        of_sgd[comm] = sent_bytes(captured(optimizers.SGD, rows=MANY, batch=BATCH), comm)
    few, many = (sent_bytes(captured(made, rows=rows, batch=BATCH), comm) for rows in (FEW, MANY))
    assert few == many
    assert many <= 1.1 * of_sgd[comm]


@pytest.mark.usefixtures("mirrored")
@pytest.mark.parametrize(("made", "grows"), [(optimizers.Adafactor, True), (optimizers.Lamb, False)])
def test_bytes_that_grow_with_the_table_are_named_in_the_plan(made: Callable[[], Any], grows: bool) -> None:
    """Adafactor uses means over all rows in ways that cannot be computed in parts."""
    few, many = (captured(made, rows=rows, batch=BATCH) for rows in (FEW, MANY))
    more_bytes = sent_bytes(many, "sharded") - sent_bytes(few, "sharded")
    assert (more_bytes > 0) == grows
    plans = [planned(single, "sharded", partitions=2) for single in (few, many)]
    named = [sum(one.size_bytes for each in plan.variables for one in each.whole_tables) for plan in plans]
    # Half of the rows are on the other rank.
    assert more_bytes <= (named[1] - named[0]) / 2
    notes = [note for note in plans[1].notes if note.startswith("all rows of «table/embeddings» are sent for op «")]
    assert len(notes) == sum(len(each.whole_tables) for each in plans[1].variables)
    assert bool(notes) == grows
