"""The raw gradients of a step that the script writes, and what the step makes of them, for a batch and a half of it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.graph.traced.gradient_uses import Targets, uses_of
from parallax_runner.graph.traced.imported import First
from parallax_runner.graph.traced.loss_divisors import divisors_in
from parallax_runner.graph.traced.loss_kinds import ROUNDING, ROUNDING_OF_16_BITS
from parallax_runner.graph.traced.loss_terms import TracedLosses
from parallax_runner.graph.traced.made_up_values import bytes_of
from parallax_runner.graph.traced.trial_graph import TrialGraph, draws

# A dense gradient, or the values and the indices of a sparse one.
Gradient = tuple[np.ndarray, ...]
# A step whose variables, or one of whose tensors, need more bytes is not tried. A trial holds several gradients.
MOST_BYTES = 2**28


@dataclass(frozen=True)
class Parts:
    """Tensors of one trace: the values of the losses, the marks, the raw gradients, and what is written from these."""

    totals: list[Any]
    marks: list[Any]
    raw: list[tuple[Any, ...]]
    uses: list[Any]

    @property
    def every(self) -> list[Any]:
        """All tensors, in an order that follows from the numbers of them."""
        return [*self.totals, *self.marks, *self.uses, *(one for raw in self.raw for one in raw)]

    def as_imported(self, imported: Sequence[Any]) -> Parts:
        """Returns the same parts of another graph, whose tensors are in the order of `every`."""
        rest = iter(imported)
        totals, marks, uses = ([next(rest) for _ in part] for part in (self.totals, self.marks, self.uses))
        return Parts(totals, marks, [tuple(next(rest) for _ in one) for one in self.raw], uses)


class StepGraph(TrialGraph):
    """A step for a `whole` batch and for a `half` of it in one graph, with common variables.

    `targets` are the numbers of the losses, and `marks` the divisors that a trial can replace. `uses` are the numbers
    of the losses on which each written tensor depends, and `unseen` those whose gradients are used in a way that is not
    known.

    Raises ValueError if the two traces differ in more than sizes, or cannot be evaluated.
    """

    def __init__(self, whole: TracedLosses, half: TracedLosses, firsts: Sequence[First]) -> None:
        traces = {"whole": whole, "half": half}
        parts = {name: _parts(one) for name, one in traces.items()}
        super().__init__(traces, {name: one.every for name, one in parts.items()}, firsts)
        self.parts = {name: one.as_imported(self.tensors[name]) for name, one in parts.items()}
        self.targets = [loss.total.number for loss in whole.losses]
        self.marks = divisors_in(whole.graph)
        found = uses_of(whole)
        self.uses: list[Targets] = [targets for _, targets in found.tensors]
        self.unseen = found.unseen | uses_of(half).unseen
        if _described(whole) != _described(half):
            raise ValueError("the step for a batch and the step for a half of it have different losses or updates")
        needed = self.needed([*self.tensors["whole"], *self.tensors["half"]])
        self._check(needed)
        self.hold(needed)
        types = {tensor.dtype for op in needed for tensor in op.outputs}
        self.rounding = ROUNDING_OF_16_BITS if types & {tf.float16, tf.bfloat16} else ROUNDING

    def _check(self, needed: set[Any]) -> None:
        held = sum(bytes_of(one) for one in self.variables if one.handle.op in needed)
        largest = max((_static_bytes(tensor) for op in needed for tensor in op.outputs), default=0)
        if max(held, largest) > MOST_BYTES:
            raise ValueError(f"the step needs {max(held, largest)} bytes, at most {MOST_BYTES} are tried")
        if draws(needed, self.graph.as_graph_def()):
            raise ValueError("the step draws random numbers")


def _parts(traced: TracedLosses) -> Parts:
    named = traced.graph.get_tensor_by_name
    return Parts(
        totals=[loss.total.tensor for loss in traced.losses],
        marks=[named(one.tensor) for one in divisors_in(traced.graph)],
        raw=[(one.values,) if one.indices is None else (one.values, one.indices) for one in traced.raw],
        uses=[tensor for tensor, _ in uses_of(traced).tensors],
    )


def _described(traced: TracedLosses) -> Any:
    marks = [(one.kind, one.term) for one in divisors_in(traced.graph)]
    return marks, [loss.total.number for loss in traced.losses], [targets for _, targets in uses_of(traced).tensors]


def _static_bytes(tensor: Any) -> int:
    return int(tensor.dtype.size * (tensor.shape.num_elements() or 0)) if tensor.shape.is_fully_defined() else 0


def merged(parts: Sequence[Gradient], factor: float) -> Gradient:
    """Returns the sum of the gradients of one variable, times `factor`. Each row of a sparse gradient occurs once, as
    in a step of the ranks."""
    if len(parts[0]) == 1:
        dense = functools.reduce(np.add, (one[0] for one in parts))
        return (dense if factor == 1 else dense * np.asarray(factor, dense.dtype),)
    values, indices = (np.concatenate(each) for each in zip(*parts, strict=True))
    rows, place = np.unique(indices, return_inverse=True)
    total = np.zeros((len(rows), *values.shape[1:]), values.dtype)
    np.add.at(total, place, values)
    return (factor * total).astype(values.dtype), rows
