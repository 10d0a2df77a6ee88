"""When the losses of a model are tried before the first step."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest

from parallax_runner.config.frozen import from_plain
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver import loss_check
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_step
from parallax_runner.plan.plan import Plan
from tests.single.small_models import captured

BATCH = 3


class Data:
    """Counts the examples that are read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def train_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        assert start == 0
        self.read.append(size)
        return {"x": np.linspace(0, 1, 2 * size).reshape(size, 2), "y": np.linspace(1, 2, size)}


@pytest.fixture(scope="module")
def summing() -> SingleDeviceGraph:
    """A model whose loss is a sum."""

    def make() -> Any:
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
        return model

    features = {"x": ((BATCH, 2), "float32"), "y": ((BATCH,), "float32")}
    return capture_step(make, features, seed=1, options={"labels": "y"})


def config(*, sync: bool = True) -> RunConfig:
    return from_plain({"data": {"batch_size": BATCH}, "comm": {"sync": sync}})


def notes(single: SingleDeviceGraph, plan: Plan, data: Any, *, sync: bool = True) -> tuple[str, ...]:
    return loss_check.notes(config(sync=sync), plan, single, data)


def test_several_replicas_are_told_about_a_sum(summing: SingleDeviceGraph) -> None:
    for workers, read in ((2, 6), (3, 8), (100, 8)):
        data = Data()
        (note,) = notes(summing, Plan("mpi", workers, 0, "f", (), ()), data)
        assert f"are {workers} times smaller than on one device" in note
        assert data.read == [read]


def test_one_replica_steps_without_an_average_and_graphs_are_not_tried(summing: SingleDeviceGraph) -> None:
    data = Data()
    assert notes(summing, Plan("local", 1, 0, "f", (), ()), data) == ()
    assert notes(summing, Plan("ps", 2, 1, "f", (), ()), data, sync=False) == ()
    assert notes(captured(), Plan("mpi", 2, 0, "f", (), ()), data) == ()
    assert data.read == []


def test_data_that_cannot_be_read_leave_what_the_model_says(summing: SingleDeviceGraph) -> None:
    class Broken:
        def train_batch(self, start: int, size: int) -> Any:
            raise OSError("gone")

    (note,) = notes(dataclasses.replace(summing), Plan("mpi", 2, 0, "f", (), ()), Broken())
    assert "is a sum over examples. A step" in note
