"""Identifies the data of a run, so that a later run or another process can detect other data.

A path does not identify data, since files move and change. The parts of an identity come from the examples themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset, Feature
from parallax_runner.data.digest import digest_of
from parallax_runner.files.plain import read_object
from parallax_runner.files.whole import write_whole

FILE_NAME = "data.json"
# The driver's examples, if workers make data of their own that may differ.
EXAMPLES_OF_DRIVER = "examples_of_driver.json"
# Names of parts. The messages contain these names.
EXAMPLES, FEATURES, CONTENT, FIRST = "examples", "features", "content", "first examples"
FIRST_EXAMPLES = 32  # number of the first examples that are read

Parts = Mapping[str, str]


@dataclass(frozen=True)
class Contents:
    """What identifies the examples of a dataset.

    `training` and `validation` map the name of each part to its value or digest, regardless of the order of the
    training examples. `order` identifies that order. It is empty if `training` depends on the order.
    """

    training: Parts = field(default_factory=dict)
    order: str = ""
    validation: Parts = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Writes the contents as JSON. Raises OSError if the file cannot be written."""
        write_whole(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Contents:
        """Reads a file that `save` wrote. Raises OSError or ValueError if that is not possible."""
        return cls(**read_object(path)[1])


@runtime_checkable
class Identified(Protocol):
    """A dataset that identifies its examples. For any other dataset, the first examples are read."""

    def sizes(self) -> Parts:
        """Returns the parts that only the driver computes, since counting can mean reading all examples."""
        ...

    def contents(self) -> Contents:
        """Returns the contents."""
        ...


def is_exact(config: RunConfig) -> bool:
    """Returns whether the data is the same each time it is loaded, which `data.resume=approximate` denies."""
    return bool(config.data.get("resume") != "approximate")


def identity_of(config: RunConfig, dataset: Dataset) -> Contents:
    """Returns all that identifies a run's data. Reads a few examples, or up to `READ_BYTES` of arrays.

    If the data is not the same each time it is loaded, only its features and its size identify it.
    """
    found = loaded_contents(config, dataset)
    sizes = dataset.sizes() if isinstance(dataset, Identified) else {EXAMPLES: str(dataset.train_size)}
    return Contents({**sizes, **found.training}, found.order, found.validation)


def loaded_contents(config: RunConfig, dataset: Dataset) -> Contents:
    """Returns the part of the identity that a worker compares with the driver's."""
    features = {FEATURES: _listed(dataset.features)}
    if not is_exact(config):
        return Contents(features)
    found = examples_of(dataset)
    return Contents({**features, **found.training}, found.order, found.validation)


def examples_of(dataset: Dataset) -> Contents:
    """Returns what the examples of this process identify. Reads a few examples, or up to `READ_BYTES` of arrays."""
    return dataset.contents() if isinstance(dataset, Identified) else _by_first_examples(dataset)


def differences(before: Parts, now: Parts) -> list[str]:
    """Returns one phrase for each part that both identities have and that differs."""
    changed = [name for name in before if name in now and before[name] != now[name]]
    return [_phrase(name, before[name], now[name]) for name in changed]


def _phrase(name: str, before: str, now: str) -> str:
    if name == CONTENT:
        return "the content of the examples differs"
    if name == FIRST:
        return "the first examples differ"
    return f"{name}: {now} instead of {before}"


def _listed(features: Mapping[str, Feature]) -> str:
    return ", ".join(f"{name} {one.dtype} {list(one.shape)}" for name, one in sorted(features.items()))


def _by_first_examples(dataset: Dataset) -> Contents:
    training = {FIRST: digest_of(dataset.train_batch(0, min(FIRST_EXAMPLES, dataset.train_size)))}
    if not dataset.validation_size:
        return Contents(training)
    first = dataset.validation_batch(0, min(FIRST_EXAMPLES, dataset.validation_size))
    return Contents(training, validation={EXAMPLES: str(dataset.validation_size), FIRST: digest_of(first)})


def difference_in(driver: Contents, worker: Contents) -> str | None:
    """Returns a phrase that states how a worker's data differs from the driver's, or None."""
    training = differences(driver.training, worker.training)
    if training:
        return f"training data ({'; '.join(training)})"
    if driver.order != worker.order:
        return "training data (the order of the examples differs)"
    validation = differences(driver.validation, worker.validation)
    return f"validation data ({'; '.join(validation)})" if validation else None
