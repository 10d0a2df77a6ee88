"""Determines which ops of a step compute values that differ by rank."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from operator import or_

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.marks import marks_behind

DIFFERS = 1


class RankDependence:
    """The ops of a step that depend on something that differs by rank, or on a variable that each rank sets itself.

    An op depends on its sources, along data edges. Aggregated gradients are the same on all ranks, so the search stops
    at the tensors named in `stop_at`.
    """

    def __init__(
        self,
        step: Collection[tf.Operation],
        stop_at: frozenset[str],
        differs_by_rank: Callable[[tf.Operation], bool],
    ) -> None:
        self._stop_at = stop_at
        self._differs_by_rank = differs_by_rank
        handles = sorted(op.name for op in step if op.type == "VarHandleOp")
        self._bits = {name: DIFFERS << number for number, name in enumerate(handles, start=1)}
        marked = {op: self._bits.get(op.name, 0) | (DIFFERS if differs_by_rank(op) else 0) for op in step}
        self._marks = marks_behind(step, marked, stop_at=stop_at, control=False)

    def marks_of(self, own: Iterable[str]) -> int:
        """Returns the marks of everything that differs by rank if each rank sets the variables `own` itself."""
        return functools.reduce(or_, (self._bits.get(name, 0) for name in own), DIFFERS)

    def differs(self, op: tf.Operation, sought: int = DIFFERS) -> bool:
        """Returns whether an op of the step depends on something that differs by rank. `sought` is the result of
        `marks_of`, or the default if no variable is set by each rank itself."""
        return bool(self._marks[op] & sought)

    def first_source(self, op: tf.Operation, own: Mapping[str, str]) -> str:
        """Returns the first source of a differing op that differs by rank, with the reason in parentheses.

        `own` maps each variable that each rank sets itself to such a reason.
        """
        sources = edit.in_order(edit.ancestors([op], stop_at=self._stop_at, control=False))
        reasons = {source.name: f"({source.type})" for source in sources if self._differs_by_rank(source)}
        reasons |= {source.name: own[source.name] for source in sources if source.name in own}
        name, why = next(iter(reasons.items()))
        return f"«{name}» {why}"
