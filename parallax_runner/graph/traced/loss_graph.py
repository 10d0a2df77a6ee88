"""Evaluates traced losses in a graph of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.graph.traced import trial_graph
from parallax_runner.graph.traced.imported import First
from parallax_runner.graph.traced.loss_kinds import ROUNDING, ROUNDING_OF_16_BITS
from parallax_runner.graph.traced.loss_terms import LossTerm, TracedLosses
from parallax_runner.graph.traced.made_up_values import bytes_of
from parallax_runner.graph.traced.trial_graph import TrialGraph, draws


class LossGraph(TrialGraph):
    """The losses for a `whole` batch and for a `half` of it in one graph, with common variables.

    `usable` contains the numbers of the terms that are evaluated. The other terms draw random numbers in a way that
    cannot be replaced, or need too many bytes of variables.
    """

    def __init__(self, whole: TracedLosses, half: TracedLosses, firsts: Iterable[First]) -> None:
        traces = {"whole": whole, "half": half}
        wanted = {name: [term.tensor for term in terms_of(traced)] for name, traced in traces.items()}
        super().__init__(traces, wanted, firsts)
        with self.graph.as_default():
            self._values = {name: list(map(_as_number, tensors)) for name, tensors in self.tensors.items()}
        terms = zip(*self._values.values(), strict=True)
        self._needed = [self.needed(values) for values in terms]
        self.usable = self._find_usable()
        self.hold(set[Any]().union(*(self._needed[number] for number in self.usable)))

    def rounding(self, term: int) -> float:
        """Returns the rounding error of a term, relative to its value."""
        types = {tensor.dtype for op in self._needed[term] for tensor in op.outputs}
        return ROUNDING_OF_16_BITS if types & {tf.float16, tf.bfloat16} else ROUNDING

    def evaluate(self, session: Any, batch: Mapping[str, np.ndarray], *, is_half: bool) -> dict[int, float]:
        """Returns the value of each usable term for a whole batch or a half of it."""
        trace = "half" if is_half else "whole"
        values = session.run([self._values[trace][number] for number in self.usable], self.fed(trace, batch))
        return dict(zip(self.usable, map(float, values), strict=True))

    def _find_usable(self) -> list[int]:
        sizes = {one.handle.op: bytes_of(one) for one in self.variables}
        held: set[Any] = set()
        graph_def = self.graph.as_graph_def()
        found = []
        for number, needed in enumerate(self._needed):
            more = held | (needed & sizes.keys())
            if sum(sizes[op] for op in more) > trial_graph.MOST_BYTES or draws(needed, graph_def):
                continue
            held = more
            found.append(number)
        return found


def terms_of(traced: TracedLosses) -> list[LossTerm]:
    """Returns the totals and terms of all losses, in the order in which a `LossGraph` numbers them."""
    return [term for loss in traced.losses for term in (loss.total, *loss.terms)]


def _as_number(tensor: Any) -> Any:
    return tf.reduce_sum(tf.cast(tensor, tf.float64))
