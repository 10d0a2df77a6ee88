"""What a tracker is told of the data: the same for the same configuration, and other digests for other data."""

from __future__ import annotations

from typing import Any

import numpy as np

from parallax_runner.config.frozen import FIT, SCRIPT, from_plain
from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.data.dataset import Feature
from parallax_runner.driver.datasets import dataset_facts
from parallax_runner.track.tracker import DatasetFacts


def facts(validation: int = 5, model: dict[str, Any] | None = None, **data: Any) -> list[DatasetFacts]:
    arrays = ({"x": np.zeros([count, 3], np.float32)} for count in (10, validation))
    dataset = ArrayDataset(train=next(arrays), validation=next(arrays), words_per_example=None, seed=1)
    config = {"model": model or {"_target_": "m"}, "data": {"_target_": "package.load", "batch_size": 4, **data}}
    return dataset_facts(from_plain(config), dataset)


def test_training_and_validation_data_with_what_is_known_of_them() -> None:
    train, validation = facts(seed=1)
    assert (train.name, train.context, train.examples) == ("package.load", "training", 10)
    assert (validation.name, validation.context, validation.examples) == ("package.load", "validation", 5)
    assert train.features == validation.features == {"x": {"shape": [3], "dtype": "float32"}}
    assert train.source == {"_target_": "package.load", "seed": 1}
    assert train.digest != validation.digest


def test_a_digest_is_of_the_data_and_not_of_how_they_are_read() -> None:
    digest = facts(seed=1)[0].digest
    assert facts(seed=1, batch_size=8, resume="approximate")[0].digest == digest
    assert facts(seed=2)[0].digest != digest
    assert len(facts(seed=1, validation=0)) == 1


def test_a_ragged_feature() -> None:
    dataset = ArrayDataset(train={"x": np.zeros(10)}, validation={"x": np.zeros(5)}, words_per_example=None, seed=1)
    dataset.features = {"x": Feature((None,), "int32", "ragged", 1)}
    config = {"model": {"_target_": "m"}, "data": {"_target_": "package.load", "batch_size": 4}}
    train, _ = dataset_facts(from_plain(config), dataset)
    assert train.features == {"x": {"shape": [None], "dtype": "int32", "kind": "ragged"}}


def test_the_data_of_a_script() -> None:
    assert facts(model={"_target_": SCRIPT}) == []
    train, _ = facts(model={"_target_": FIT, "path": "/there/train.py", "module": None})
    assert (train.name, train.source) == ("fit", {"_target_": "fit", "script": "/there/train.py"})
