"""Determines at which points in a step's computation a variable's values are first needed and its gradient is
complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.heavy_ops import heavy_ops, weight


class Moments:
    """Points in time, as fractions of the computation of all gradients, weighted by floating-point operations."""

    def __init__(self, gradients: Iterable[tf.Operation]) -> None:
        self._all = edit.ancestors(gradients)
        self._weights = {op: weight(op) for op in heavy_ops(self._all)}

    def needed_at(self, handle: tf.Operation) -> float:
        """Returns the fraction of the computation that can run before the variable is needed.

        Returns 0 if no gradient needs the variable, or if there are no heavy ops.
        """
        users = edit.descendants(handle.outputs, within=self._all)
        return self._share(self._weights.keys() - users) if users and self._weights else 0.0

    def appear_at(self, gradients: Mapping[str, Sequence[tf.Operation]]) -> dict[str, float]:
        """Returns, for each variable with a gradient, the fraction of the computation that is done when its last
        gradient is complete.

        A step is assumed to compute sequentially, as ranks do (rewrite/schedule/send_early.py). The step first computes
        everything for the variable whose gradients need the fewest heavy ops, and then the additional ops for the next
        variable.
        """
        needed = {name: edit.ancestors(ops) & self._weights.keys() for name, ops in gradients.items() if ops}
        found: dict[str, float] = {}
        done: set[tf.Operation] = set()
        for name in sorted(needed, key=lambda name: (len(needed[name]), name)):
            done |= needed[name]
            found[name] = self._share(done)
        return found

    def _share(self, ops: Iterable[tf.Operation]) -> float:
        total = sum(self._weights.values())
        return sum(self._weights[op] for op in ops) / total if total else 1.0
