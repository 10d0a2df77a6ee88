"""What a run is compared by, and which names are refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from parallax_runner.config.frozen import from_plain
from parallax_runner.config.objective import PERPLEXITY, VALIDATION_LOSS, Direction, Goal
from parallax_runner.driver.goal import goal_of
from parallax_runner.errors import ConfigError, PlanError
from parallax_runner.graph.single_device_graph import MetricSums, SingleDeviceGraph
from tests.single.small_models import captured
from tests.single.train.test_loop import dataset

DIRECTIONS: dict[str, Direction | None] = {"auc": "maximize", "rmse": "minimize", "score": None}


@pytest.fixture(scope="module")
def single() -> SingleDeviceGraph:
    return dataclasses.replace(captured(), validation_metrics=MetricSums((), lambda _: {}, DIRECTIONS))


def goal(single: SingleDeviceGraph, validation: int = 13, *, by_model: Any = None, **train: str) -> Goal:
    config = from_plain({"data": {"batch_size": 13}, "train": train})
    return goal_of(config, dataclasses.replace(single, validation_metric=by_model), dataset(validation=validation))


def test_the_model_may_choose(single: SingleDeviceGraph) -> None:
    assert goal(single) == VALIDATION_LOSS
    assert goal(single, by_model="perplexity") == PERPLEXITY
    assert goal(single, by_model="auc") == Goal("auc", "auc", "maximize")
    assert goal(single, validation=0, by_model="auc") == Goal("auc", "auc", "maximize"), "as if it were validated"


def test_the_user_may_choose(single: SingleDeviceGraph) -> None:
    assert goal(single, by_model="perplexity", objective="auc") == Goal("auc", "auc", "maximize")
    assert goal(single, by_model="perplexity", objective="perplexity") == PERPLEXITY
    assert goal(single, by_model="perplexity", objective="loss") == VALIDATION_LOSS
    assert goal(single, objective="rmse", direction="minimize") == Goal("rmse", "rmse", "minimize")
    assert goal(single, objective="score", direction="maximize") == Goal("score", "score", "maximize")


@pytest.mark.parametrize(
    ("train", "told"),
    [
        (
            {"objective": "val_auc"},
            r"objective=val_auc: .* auc, loss, .*; did you mean train\.objective=auc\?",
        ),
        ({"objective": "perplexity"}, r"objective=perplexity: .* auc, loss, rmse, score"),
        (
            {"objective": "score"},
            r"objective=score: the direction .* unknown; add train\.direction=maximize or minimize",
        ),
        ({"objective": "auc", "direction": "minimize"}, r"direction=minimize: expected maximize, the direction of auc"),
    ],
)
def test_what_no_validation_finds_is_refused(single: SingleDeviceGraph, train: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        goal(single, **train)


def test_fewer_examples_than_a_batch_are_validated(single: SingleDeviceGraph) -> None:
    assert goal(single, validation=12, objective="auc") == Goal("auc", "auc", "maximize")


def test_without_validation_nothing_can_be_chosen(single: SingleDeviceGraph) -> None:
    with pytest.raises(
        ConfigError, match=r"objective=auc: this run cannot be validated: there are no validation examples"
    ):
        goal(single, validation=0, objective="auc")
    with pytest.raises(
        ConfigError, match=r"objective=loss: this run cannot be validated: the model has no validation_loss"
    ):
        goal(dataclasses.replace(single, validation_loss=None), objective="loss")


def test_a_model_that_names_what_is_not_there_is_refused(single: SingleDeviceGraph) -> None:
    for name in ("accuracy", "", 3):
        with pytest.raises(
            PlanError, match=rf"validation_metric={name!r} is unknown; known metrics: auc, .*perplexity"
        ):
            goal(single, by_model=name)
    with pytest.raises(PlanError, match="needs a validation_loss"):
        goal(dataclasses.replace(single, validation_loss=None), by_model="perplexity")
    with pytest.raises(PlanError, match="give the metric a direction"):
        goal(single, by_model="score")
