"""Where in a step's computing a variable's values are first needed, and its gradient is there."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.heavy_ops import heavy_ops, weight


class Moments:
    """Shares of the computing that leads to all gradients, weighed by multiplications."""

    def __init__(self, gradients: Iterable[tf.Operation]) -> None:
        self._all = edit.ancestors(gradients)
        self._weights = {op: weight(op) for op in heavy_ops(self._all)}

    def needed_at(self, handle: tf.Operation) -> float:
        """What can be computed without the variable; 0 where no gradient needs it."""
        users = edit.descendants(handle.outputs, within=self._all)
        return self._share(op for op in self._weights if op not in users) if users else 0.0

    def appears_at(self, gradients: Iterable[tf.Operation]) -> float:
        """What has to be computed before the last of the variable's gradients is there; 1 where it has none."""
        needed = edit.ancestors(gradients)
        return self._share(op for op in self._weights if op in needed) if needed else 1.0

    def _share(self, ops: Iterable[tf.Operation]) -> float:
        total = sum(self._weights.values())
        return sum(self._weights[op] for op in ops) / total if total else 1.0
