"""Decides which marks count in a training step that the script writes (docs/design/0092).

A script may divide a sum by the number of examples itself, in the loss or in the gradients. Marks therefore count only
if two replicas with the halves of a batch are then shown to write the same as one device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from parallax_runner.graph import edit
from parallax_runner.graph.single_device_graph import Divisor, DivisorKind
from parallax_runner.graph.traced.loss_kinds import LossKind, LossValues
from parallax_runner.graph.traced.loss_terms import TracedLosses
from parallax_runner.graph.traced.step_graph import StepGraph
from parallax_runner.graph.traced.two_replicas import TwoReplicas

Marks = frozenset[int]
# Each subset of so many marks of a loss is tried, and so many combinations for losses that belong together.
MOST_MARKS, MOST_TRIED = 4, 64
EXACT = (LossKind.MEAN, LossKind.CONSTANT)


@dataclass(frozen=True)
class Offer:
    """What rewriting can do for a step: replace these marks. If `is_uneven` is set, replicas can have different numbers
    of examples, so the step must not divide gradients by the number of examples of a replica."""

    marks: tuple[Divisor, ...] = ()
    is_uneven: bool = False


NOTHING = Offer()


@dataclass(frozen=True)
class Proof:
    """What is proven about a loss: with these marks, the step is exact. If `marks` is None, the step is exact only if
    all replicas have the same number of examples, because it divides gradients by a number of its own batch."""

    marks: Marks | None


class StepTrial:
    """Finds marks that make a step exact. `kinds` are the kinds of the losses by their number, and `stages` the step
    with several batches and weights."""

    def __init__(
        self,
        graph: StepGraph,
        traced: TracedLosses,
        stages: Sequence[TwoReplicas],
        kinds: Mapping[int, LossKind],
        offer: Offer,
    ) -> None:
        self._graph, self._stages, self._kinds, self._is_uneven = graph, stages, kinds, offer.is_uneven
        can_count = _found_again(offer.marks, graph.marks)
        self._own = {one.term for one in can_count if one.term < 0}
        self._of_terms = {
            loss.total.number: _marks_behind(traced, loss.total.tensor, can_count) for loss in traced.losses
        }

    def proven(self) -> dict[int, Proof]:
        """Returns what is proven, by the number of the loss. A loss for which nothing is proven is left out."""
        found: dict[int, Proof] = {}
        for group in self._groups():
            is_exact = all(self._kinds[one] in EXACT for one in group)
            proof = None if is_exact or group & self._graph.unseen else self._proof(group)
            if proof is not None:
                found |= dict.fromkeys(group, proof)
        return found

    def _proof(self, group: Marks) -> Proof | None:
        marks = self._first_exact(group, alone=self._is_uneven)
        if marks is not None:
            return Proof(marks)
        is_divided = self._is_uneven and self._first_exact(group, alone=False) is not None
        return Proof(None) if is_divided else None

    def _groups(self) -> list[Marks]:
        """Returns the losses that are decided together, because they have marks or written values in common."""
        groups = [Marks([one]) for one in self._graph.targets]
        common = [*self._graph.uses, *self._losses_with_a_mark()]
        for one in common:
            joined = Marks().union(*(group for group in groups if group & one))
            groups = [*(group for group in groups if not group & one), *([joined] if joined else [])]
        return groups

    def _losses_with_a_mark(self) -> Iterator[Marks]:
        for mark in {one.term for marks in self._of_terms.values() for one in marks}:
            yield Marks(target for target, marks in self._of_terms.items() if mark in {one.term for one in marks})

    def _first_exact(self, group: Marks, *, alone: bool) -> Marks | None:
        choices = [self._choices(target) for target in sorted(group, reverse=True)]
        tried = (Marks().union(*chosen) for chosen in itertools.product(*choices))
        return next(
            (one for one in itertools.islice(tried, MOST_TRIED) if self._is_exact(group, one, alone=alone)), None
        )

    def _is_exact(self, group: Marks, marks: Marks, *, alone: bool) -> bool:
        """Returns whether each stage in which the losses are finite shows that the step is exact."""
        stages = [one for one in self._stages if all(one.total(target, ()).is_finite for target in group)]
        return bool(stages) and all(one.are_equal(group, marks, alone=alone) for one in stages)

    def _choices(self, target: int) -> list[Marks]:
        """Returns the sets of marks that make the value of a loss exact, or its gradient, then the empty set."""
        kind = self._kinds[target]
        if kind in EXACT:
            return [Marks()]
        found = [one for one in _subsets(self._of_terms[target]) if self._is_mean(target, one)]
        if kind == LossKind.SUM and target in self._own:
            found.append(Marks([target]))
        return [*found, Marks()]

    def _is_mean(self, target: int, marks: Marks) -> bool:
        return _all_finite(
            (one.total(target, marks) for one in self._stages), lambda each: each.is_mean(self._graph.rounding)
        )


def _found_again(offered: Iterable[Divisor], marks: Sequence[Divisor]) -> list[Divisor]:
    """Returns those of the `marks` that are offered. Returns none if one is missing: a step that computes other losses
    if layers do not train gives the same numbers to other losses."""
    wanted = {(one.kind, one.term) for one in offered}
    found = [one for one in marks if (one.kind, one.term) in wanted]
    return found if len({(one.kind, one.term) for one in found}) == len(wanted) else []


def _marks_behind(traced: TracedLosses, loss: object, marks: Iterable[Divisor]) -> list[Divisor]:
    """Returns the marks of the terms on which a loss depends."""
    needed = edit.ancestors([loss.op], control=False)  # type: ignore[attr-defined]
    named = traced.graph.get_tensor_by_name
    return [one for one in marks if one.term >= 0 and named(one.tensor).op in needed]


def _subsets(marks: Sequence[Divisor]) -> list[Marks]:
    """Returns the sets of marks to try, the largest first."""
    terms = list(dict.fromkeys(one.term for one in marks))
    if len(terms) > MOST_MARKS:
        counts = [one.term for one in marks if one.kind.decided == DivisorKind.COUNT]
        return [Marks(one) for one in (terms, counts) if one]
    sizes = range(len(terms), 0, -1)
    return [Marks(one) for size in sizes for one in itertools.combinations(terms, size)]


def _all_finite(values: Iterable[LossValues], holds: Callable[[LossValues], bool]) -> bool:
    """Returns whether a condition holds for all values that are finite, and some are."""
    finite = [one for one in values if one.is_finite]
    return bool(finite) and all(map(holds, finite))
