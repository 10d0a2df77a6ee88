"""Determines at which points in a step's computation a variable's values are first needed and its gradient is
complete."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from operator import or_

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.heavy_ops import heavy_ops, weight
from parallax_runner.graph.marks import bits_of, marks_behind, positions


class Moments:
    """Points in time, as fractions of the computation of all gradients, weighted by floating-point operations."""

    def __init__(self, gradients: Iterable[tf.Operation]) -> None:
        self._all = edit.ancestors(gradients)
        self._heavy = sorted(heavy_ops(self._all), key=lambda op: op.name)
        self._weights = [weight(op) for op in self._heavy]
        self._total = sum(self._weights)

    def needed_at(self, handles: Iterable[tf.Operation]) -> dict[tf.Operation, float]:
        """Returns, for each variable's handle, the fraction of the computation that can run before the variable is
        needed.

        The fraction is 0 if no gradient needs the variable, or if there are no heavy ops.
        """
        bits = bits_of(handles)
        needs = marks_behind(self._all, bits, control=False)
        used = functools.reduce(or_, (marks for op, marks in needs.items() if op not in bits), 0)
        later = [0.0] * len(bits)
        for op, op_weight in zip(self._heavy, self._weights, strict=True):
            for handle in positions(needs[op]):
                later[handle] += op_weight
        return {
            handle: self._share(self._total - later[number]) if bit & used and self._heavy else 0.0
            for number, (handle, bit) in enumerate(bits.items())
        }

    def appear_at(self, gradients: Mapping[str, Sequence[tf.Operation]]) -> dict[str, float]:
        """Returns, for each variable with a gradient, the fraction of the computation that is done when its last
        gradient is complete.

        A step is assumed to compute sequentially, as ranks do (rewrite/schedule/send_early.py). The step first computes
        everything for the variable whose gradients need the fewest heavy ops, and then the additional ops for the next
        variable.
        """
        behind = marks_behind(self._all, bits_of(self._heavy))
        needed = {name: functools.reduce(or_, map(behind.__getitem__, ops)) for name, ops in gradients.items() if ops}
        found: dict[str, float] = {}
        done, done_weight = 0, 0.0
        for name in sorted(needed, key=lambda name: (needed[name].bit_count(), name)):
            done_weight += sum(self._weights[number] for number in positions(needed[name] & ~done))
            done |= needed[name]
            found[name] = self._share(done_weight)
        return found

    def _share(self, weight_of_ops: float) -> float:
        return weight_of_ops / self._total if self._total else 1.0
