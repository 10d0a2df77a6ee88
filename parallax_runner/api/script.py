"""Gives the driver the graph that a script has built."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from parallax_runner.config.actions import action_of
from parallax_runner.config.schema import RunConfig
from parallax_runner.errors import ConfigError, DataError, LaunchError, Setting
from parallax_runner.process.script_file import script_file, script_module, why_not_again

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

    from parallax_runner.data.dataset import Dataset
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph


def start_it_plainly(*_: Any, **__: Any) -> NoReturn:
    """The target of `model=script`. Always raises ConfigError, because `model=script` works only through
    parallel_run."""
    raise ConfigError("the graph comes from a script that calls parallel_run").about(
        Setting("model", "script"), remedy="start the script itself, as in `python train.py`"
    )


@dataclass(frozen=True)
class NoData:
    """An empty dataset, for a script that reads its data itself."""

    features: dict[str, Any] = field(default_factory=dict)
    words_per_example: int | None = None
    train_size: int = 1
    validation_size: int = 0

    def train_batch(self, start: int, size: int) -> NoReturn:
        """Always raises DataError."""
        raise DataError("a script reads its own data")


@dataclass(frozen=True)
class ScriptSource:
    """The graph that a script has built."""

    graph: tf.Graph

    def load_dataset(self, config: RunConfig) -> Dataset:
        """Returns an empty dataset. Raises ConfigError for an action that needs data."""
        if not action_of(config).in_script:
            raise ConfigError("not possible here, because only the script can read its data").about(
                Setting.of("action", config.action)
            )
        return NoData()  # type: ignore[return-value]

    def build_graph(self, config: RunConfig, dataset: Dataset) -> SingleDeviceGraph:
        """Captures the script's graph."""
        from parallax_runner.graph.script_graph import capture_script

        return capture_script(self.graph)

    def build_serving_graph(self, config: RunConfig, dataset: Dataset) -> SingleDeviceGraph:
        """Always raises ConfigError, since the batch size of a script's graph is fixed."""
        raise ConfigError("a script's graph has a fixed batch size")

    def untouched(self, config: RunConfig, dataset: Dataset) -> None:
        """Returns None: the script has built a graph, not a function."""


def started_as() -> list[str]:
    """Returns the overrides with which workers run this script again for parallel_run.

    Raises LaunchError if there is no script file.
    """
    file = script_file()
    if file is None:
        raise LaunchError(
            "parallel_run starts its script again in each worker, but this is a notebook, an interactive session or a "
            "program without a file; put the code into a file and start the file, as in `python train.py`"
        )
    return _again(file)


def started_as_if_possible() -> list[str]:
    """Returns the overrides with which workers can run this script again up to a call of fit. The path is null if they
    cannot."""
    file = script_file()
    if file is None or why_not_again() is not None:
        return ["model.path=null"]
    return _again(file)


def _again(file: Path) -> list[str]:
    from parallax_runner.api.overrides import value_of

    return [
        f"model.path={value_of(str(file))}",
        f"model.module={value_of(script_module())}",
        f"model.arguments={value_of(sys.argv[1:])}",
    ]
