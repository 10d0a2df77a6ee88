"""Gives the driver the graph that a script has built."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from parallax_runner.config.schema import RunConfig
from parallax_runner.errors import ConfigError, DataError, LaunchError

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

    from parallax_runner.data.dataset import Dataset
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph


def start_it_plainly(*_: Any, **__: Any) -> NoReturn:
    """The target of `model=script`. Always raises ConfigError, because `model=script` works only through
    parallel_run."""
    raise ConfigError(
        "model=script: the graph comes from a script that calls parallel_run; start the script itself, as in "
        "`python train.py`"
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
        if config.action in ("verify", "sync"):
            raise ConfigError(f"action={config.action}: not possible here, because only the script can read its data")
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


def started_as(function: str = "parallel_run") -> list[str]:
    """Returns the overrides for starting this script again. `function` is the name of the function that the script
    called, for error messages.

    Raises LaunchError if there is no script file.
    """
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if file is None:
        raise LaunchError(
            f"{function} starts its script again in each worker, but this is a notebook or an interactive session; "
            "put the code into a file and start the file, as in `python train.py`"
        )
    from parallax_runner.api.overrides import value_of

    module = None if spec is None else spec.name.removesuffix(".__main__")
    return [
        f"model.path={value_of(str(Path(file).resolve()))}",
        f"model.module={value_of(module)}",
        f"model.arguments={value_of(sys.argv[1:])}",
    ]
