"""Derives the seeds of Keras initializers from the graph's seed, unless the script seeded or used Python's generator.

For an initializer without a seed, Keras draws a seed from Python's generator and stores the seed in the graph as a
constant. `tf_upgrade_v2` replaces the initializers of TensorFlow 1, which follow the graph's seed, with Keras
initializers. Python's generator itself is not changed.
"""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any


def install(module: Any) -> None:
    """Replaces the generator from which the Keras module draws seeds."""
    module.python_random = _Draws(module.python_random)


class _Draws:
    """The replacement for Python's module `random` in Keras."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._count = module, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def randint(self, low: int, high: int) -> int:
        """Returns a seed."""
        import tensorflow as tf

        from parallax_runner.graph.generators import begin

        if tf.executing_eagerly() or not begin.is_untouched():
            return self._module.randint(low, high)
        self._count += 1
        return random.Random(f"{tf.compat.v1.get_default_graph().seed}/{self._count}").randint(low, high)
