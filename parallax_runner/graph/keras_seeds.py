"""Seeds of Keras initializers in a graph: by the graph's own seed, where the script has not seeded Python's generator.

Keras draws the seed of an initializer that is given none from Python's generator, and puts it into the graph as a
constant. The initializers of TensorFlow 1, in whose place `tf_upgrade_v2` writes those of Keras, follow the graph's
seed. Python's generator stays as it is.
"""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any


def install(module: Any) -> None:
    """Gives the module of Keras that draws seeds another generator."""
    module.python_random = _Draws(module.python_random)


class _Draws:
    """What Keras takes for the module `random`."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._count = module, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def randint(self, low: int, high: int) -> int:
        """A seed."""
        import tensorflow as tf

        from parallax_runner.graph.generators import begin

        if tf.executing_eagerly() or not begin.is_untouched():
            return self._module.randint(low, high)
        self._count += 1
        return random.Random(f"{tf.compat.v1.get_default_graph().seed}/{self._count}").randint(low, high)
