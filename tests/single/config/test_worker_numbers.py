"""The numbers of workers with which a run may go on, and its configuration with another number."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.config.compose import Composer
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.worker_numbers import ClusterSize, is_elastic, largest_of, with_size, worker_numbers
from parallax_runner.driver.check import checked_job


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """A run of 3 workers, each with 4 examples in a step, that may have 1 to 6 workers."""
    return changed(
        checked_job(
            Composer().job(["model=simple", "comm=local", "tracking=off", f"hydra.run.dir={tmp_path / 'run'}"])
        ),
        cluster={"launcher": "manual", "workers": 3, "min_workers": 1, "max_workers": 6, "replicas_per_worker": 1},
        data={"batch_size": 4},
    )


def with_workers(config: RunConfig, workers: int) -> RunConfig:
    return with_size(config, ClusterSize(workers, config.cluster.servers, config.cluster.resource_info))


def changed(config: RunConfig, **groups: dict[str, Any]) -> RunConfig:
    for name, keys in groups.items():
        group = getattr(config, name)
        new = {**group, **keys} if isinstance(group, Mapping) else dataclasses.replace(group, **keys)
        config = dataclasses.replace(config, **{name: new})
    return config


def test_all_numbers_that_divide_the_examples_of_a_step(config: RunConfig) -> None:
    assert worker_numbers(config) == (1, 2, 3, 4, 6)
    assert worker_numbers(changed(config, cluster={"replicas_per_worker": 2})) == (1, 2, 3, 4, 6)
    assert worker_numbers(changed(config, train={"accumulate_steps": 4})) == (1, 3)
    assert worker_numbers(changed(config, cluster={"min_workers": 2, "max_workers": None})) == (2, 3)
    assert worker_numbers(changed(config, train={"on_resize": "per_worker"})) == (1, 2, 3, 4, 5, 6)


def test_replicas_with_different_numbers_of_examples_only_need_one_each(config: RunConfig) -> None:
    assert worker_numbers(changed(config, data={"batch_size": 2, "global_batch": 5})) == (1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    "groups",
    [
        {"cluster": {"min_workers": None, "max_workers": None}},
        {"cluster": {"launcher": "local"}},
    ],
)
def test_other_runs_keep_their_number(config: RunConfig, groups: dict[str, dict[str, Any]]) -> None:
    found = changed(config, **groups)
    assert not is_elastic(found)
    assert worker_numbers(found) == ()


def test_only_a_training_changes_its_number(config: RunConfig) -> None:
    assert is_elastic(config)
    assert not is_elastic(dataclasses.replace(config, action="verify"))
    assert worker_numbers(dataclasses.replace(config, action="plan")) == worker_numbers(config), "its plan shows them"


@pytest.mark.parametrize("number", [1, 2, 4, 6])
def test_with_another_number_the_examples_and_the_numbers_stay(config: RunConfig, number: int) -> None:
    resized = with_workers(config, number)
    assert resized.cluster.workers == number
    assert resized.data["batch_size"] * number == 12
    assert resized.optimizer == config.optimizer
    assert worker_numbers(resized) == worker_numbers(config)
    assert with_workers(resized, 3).data == config.data


def test_without_bounds_of_its_own_the_first_number_is_the_bound(config: RunConfig) -> None:
    growing = changed(config, cluster={"min_workers": None})
    assert worker_numbers(growing) == worker_numbers(with_workers(growing, 6)) == (3, 4, 6)


def test_data_with_batches_of_its_own_keeps_them(config: RunConfig) -> None:
    of_fit = changed(config, data={"batch_size": None})
    assert with_workers(of_fit, 2).data == of_fit.data


@pytest.mark.parametrize(("scale", "rate"), [("none", 0.3), ("linear", 0.6), ("sqrt", 0.3 * 2**0.5)])
def test_the_rate_follows_the_number_if_the_examples_do(config: RunConfig, scale: str, rate: float) -> None:
    own = changed(
        config, train={"on_resize": "per_worker", "scale_lr": scale}, optimizer={"learning_rate": 0.3, "other": 1}
    )
    resized = with_workers(own, 6)
    assert resized.data["batch_size"] == 4
    assert resized.optimizer["learning_rate"] == pytest.approx(rate)
    assert resized.optimizer["other"] == 1


def test_the_largest_number_for_the_workers_that_are_there() -> None:
    numbers = (2, 3, 4, 6)
    assert [largest_of(numbers, count) for count in (1, 2, 5, 9)] == [None, 2, 4, 6]
