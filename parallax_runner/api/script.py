"""A script as the source of a run's graph, as the driver sees it."""

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
    """What `model=script` names; only parallel_run can bring the graph. Raises ConfigError."""
    raise ConfigError(
        "model=script: a script brings its own graph; start it plainly, as in `python train.py`, and it calls "
        "parallel_run by itself"
    )


@dataclass(frozen=True)
class NoData:
    """The data set of a script, which reads its data by itself."""

    features: dict[str, Any] = field(default_factory=dict)
    words_per_example: int | None = None
    train_size: int = 1
    validation_size: int = 0

    def train_batch(self, start: int, size: int) -> NoReturn:
        """None of ours."""
        raise DataError("a script reads its data by itself")


@dataclass(frozen=True)
class ScriptSource:
    """The graph that a script has built."""

    graph: tf.Graph

    def load_dataset(self, config: RunConfig) -> Dataset:
        """None of ours."""
        if config.action in ("verify", "sync"):
            raise ConfigError(f"action={config.action}: not for a script, whose data only the script reads")
        return NoData()  # type: ignore[return-value]

    def build_graph(self, config: RunConfig, dataset: Dataset) -> SingleDeviceGraph:
        """The captured graph."""
        from parallax_runner.graph.script_graph import capture_script

        return capture_script(self.graph)

    def build_serving_graph(self, config: RunConfig, dataset: Dataset) -> SingleDeviceGraph:
        """Unknown. Raises ConfigError."""
        raise ConfigError("a script's graph has batches of its own size")


def started_as(function: str = "parallel_run") -> list[str]:
    """The overrides that say how this script was started, for `function`, which it calls.

    Raises LaunchError where there is none to start again.
    """
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if file is None:
        raise LaunchError(
            f"{function} starts its script again in each worker, and this is none (a notebook, or an interactive "
            "session): put it into a file, and start that as in `python train.py`"
        )
    from parallax_runner.api.overrides import value_of

    module = None if spec is None else spec.name.removesuffix(".__main__")
    return [
        f"model.path={value_of(str(Path(file).resolve()))}",
        f"model.module={value_of(module)}",
        f"model.arguments={value_of(sys.argv[1:])}",
    ]
