"""What is said where a model cannot be validated."""

from __future__ import annotations

import dataclasses

import pytest
from omegaconf import DictConfig, OmegaConf

from parallax_runner import validation
from parallax_runner.data.dataset import Dataset
from parallax_runner.errors import ConfigError
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.plan import Plan
from tests.single.small_models import captured, planned
from tests.single.train.test_loop import dataset

PLAN = Plan("mpi", 2, 0, True, "f", (), ("a note",))


def config(batch_size: int, validate_steps: int | None = None) -> DictConfig:
    return OmegaConf.create({"data": {"batch_size": batch_size}, "train": {"validate_steps": validate_steps}})


@pytest.fixture(scope="module")
def single() -> SingleDeviceGraph:
    found = captured()
    assert found.validation_loss is not None and planned(found, "local")
    return found


def notes(config: DictConfig, single: SingleDeviceGraph, data: Dataset) -> tuple[str, ...]:
    return validation.planned(config, PLAN, single, data).notes


def test_a_note_where_there_is_less_than_a_batch(single: SingleDeviceGraph) -> None:
    assert notes(config(13), single, dataset(validation=13)) == PLAN.notes
    assert notes(config(13), single, dataset(validation=0)) == PLAN.notes
    told = "nothing is validated: there are 13 validation examples, less than a batch (data.batch_size=14)"
    assert notes(config(14), single, dataset(validation=13)) == (*PLAN.notes, told)
    assert validation.lacks_examples(config(14), single, dataset(validation=13))
    without = dataclasses.replace(single, validation_loss=None)
    assert notes(config(14), without, dataset(validation=13)) == PLAN.notes


def test_what_cannot_be_validated_is_refused_where_it_was_asked_for(single: SingleDeviceGraph) -> None:
    asked = config(2, validate_steps=5)
    assert notes(asked, single, dataset(validation=2)) == PLAN.notes
    with pytest.raises(ConfigError, match=r"train\.validate_steps=5: .* there is 1 .*data\.batch_size=2"):
        notes(asked, single, dataset(validation=1))
    with pytest.raises(ConfigError, match=r"train\.validate_steps=5: .* the model has no validation_loss"):
        notes(asked, dataclasses.replace(single, validation_loss=None), dataset())
