"""Configuration-driven distributed TensorFlow: dense gradients use allreduce, sparse gradients use parameter servers.

A script that runs `import parallax_runner as parallax` gets the API in `parallax_runner/api/`. The API is loaded on
first use, because the command line imports this module too and must start quickly.
"""

import importlib
from typing import Any

from parallax_runner.graph import import_hook

__version__ = "0.1.0"

_WHERE = {
    "parallel_run": "parallax_runner.api.parallel_run",
    "get_partitioner": "parallax_runner.api.partitioner",
    "log": "parallax_runner.api.log",
    **dict.fromkeys(
        ("Config", "ParallaxConfig", "PSConfig", "MPIConfig", "CommunicationConfig", "CheckPointConfig"),
        "parallax_runner.api.config",
    ),
    "ProfileConfig": "parallax_runner.api.config",
    "fit": "parallax_runner.api.fit",
    "FitError": "parallax_runner.errors",
    "load_into_keras": "parallax_runner.export.keras_weights",
}
_MODULES = {
    **{name: f"parallax_runner.{name}" for name in ("metrics", "shard", "mpi_collectives")},
    "paddle": "parallax_runner.frontdoors.paddle.trainer_init",
    "data_parallel_model": "parallax_runner.frontdoors.caffe2.data_parallel_model",
}
__all__ = [*_WHERE, *_MODULES]

# The hook is installed before the script builds its graph, so that every gradient from tf.gradients is recorded.
import_hook.install()


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    raise AttributeError(f"module 'parallax_runner' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Returns all names, including those that are loaded on first use, so that an interactive Python completes them."""
    return sorted({*globals(), *__all__})
