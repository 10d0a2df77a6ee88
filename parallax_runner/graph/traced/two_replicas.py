"""Computes a step for a batch as two replicas compute it for the halves, with divisors as rewriting replaces them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from parallax_runner.graph.single_device_graph import DivisorKind
from parallax_runner.graph.traced.gradient_uses import Targets
from parallax_runner.graph.traced.loss_batches import Halved
from parallax_runner.graph.traced.loss_kinds import NEGLIGIBLE, LossValues
from parallax_runner.graph.traced.step_graph import Gradient, StepGraph, merged

# Gradients are compared in several sizes, because a gradient that is clipped to a norm hides its factor. Gradients of
# 16 bits can be too large or too small in one of them.
SIZES, FEWEST_SIZES = (1.0, 1e-2, 1e-4), 2


class TwoReplicas:
    """A step in a session, for a batch and its halves. `marks` are numbers of marks that count."""

    def __init__(self, graph: StepGraph, session: Any, batches: Halved) -> None:
        self._graph, self._session = graph, session
        self._batches = {"whole": batches[:1], "half": batches[1:]}
        counts = [self._run("half", half, graph.parts["half"].marks, {}) for half in (0, 1)]
        self._counts = [sum(values) for values in zip(*counts, strict=True)]

    def total(self, target: int, marks: Collection[int]) -> LossValues:
        """Returns the value of a loss for the batch and for its halves."""
        place = self._graph.targets.index(target)
        wanted = {trace: [one.totals[place]] for trace, one in self._graph.parts.items()}
        (whole,) = self._run("whole", 0, wanted["whole"], self._replaced("whole", (), 1.0))
        replaced = self._replaced("half", marks, 1.0)
        first, second = (self._run("half", half, wanted["half"], replaced)[0] for half in (0, 1))
        values = [float(np.sum(one, dtype="float64")) for one in (whole, first, second)]
        return LossValues(values[0], values[1], values[2], largest=max(map(abs, values)))

    def are_equal(self, targets: Collection[int], marks: Collection[int], *, alone: bool) -> bool:
        """Returns whether the replicas write what one device writes from the gradients of these losses. A size in which
        one device writes only zeros, or what is not finite, shows nothing.

        If `alone` is set, the raw gradients alone must be equal, without the help of a number that depends on the batch
        of a replica.
        """
        found = [self._are_equal(targets, marks, size, alone=alone) for size in SIZES]
        shown = [one for one in found if one is not None]
        return len(shown) >= FEWEST_SIZES and all(shown)

    def _are_equal(self, targets: Collection[int], marks: Collection[int], size: float, *, alone: bool) -> bool | None:
        uses = [place for place, one in enumerate(self._graph.uses) if one & set(targets)]
        of_whole = self._replaced("whole", (), size)
        raw = [merged([one], 1.0) for one in self._raw("whole", 0, of_whole)]
        expected = self._written("whole", 0, uses, raw, of_whole)
        if not self._is_telling(uses, expected):
            return None
        of_half = self._replaced("half", marks, size)
        halves = [self._raw("half", half, of_half) for half in (0, 1)]
        mean = [merged(parts, 1 / 2) for parts in zip(*halves, strict=True)]
        del halves
        tried = [mean, raw] if alone else [mean]
        return all(
            self._are_close(uses, self._written("half", half, uses, one, of_half), expected)
            for one in tried
            for half in (0, 1)
        )

    def _replaced(self, trace: str, marks: Collection[int], size: float) -> dict[Any, Any]:
        """Returns the values of the marks. Without a mark, the gradient of each loss is `size` times the true one."""
        fed = {}
        for tensor, mark, count in zip(self._graph.parts[trace].marks, self._graph.marks, self._counts, strict=True):
            is_count = mark.kind.decided == DivisorKind.COUNT
            of_all = count if is_count else 1.0
            of_size = 1.0 if mark.term >= 0 else 1.0 / size
            if mark.term in marks:
                fed[tensor] = of_all / 2 * of_size
            elif mark.term < 0:
                fed[tensor] = of_size
        return fed

    def _raw(self, trace: str, batch: int, fed: Mapping[Any, Any]) -> list[Gradient]:
        raw = self._graph.parts[trace].raw
        values = iter(self._run(trace, batch, [one for parts in raw for one in parts], fed))
        return [tuple(next(values) for _ in parts) for parts in raw]

    def _written(
        self, trace: str, batch: int, uses: Iterable[int], raw: Sequence[Gradient], fed: Mapping[Any, Any]
    ) -> list[np.ndarray]:
        """Returns what a step writes if its raw gradients have these values."""
        parts = self._graph.parts[trace]
        given = {
            tensor: value
            for tensors, values in zip(parts.raw, raw, strict=True)
            for tensor, value in zip(tensors, values, strict=True)
        }
        return self._run(trace, batch, [parts.uses[place] for place in uses], {**fed, **given})

    def _run(self, trace: str, batch: int, wanted: Sequence[Any], fed: Mapping[Any, Any]) -> list[Any]:
        feeds = {**self._graph.fed(trace, self._batches[trace][batch]), **fed}
        return [np.asarray(one) for one in self._session.run(list(wanted), feeds)]

    def _are_close(self, uses: Sequence[int], found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
        largest = self._largest_by_targets(uses, expected)
        return all(
            one.shape == other.shape and self._is_close(one, other, largest.get(self._graph.uses[place], 0.0))
            for place, one, other in zip(uses, found, expected, strict=True)
        )

    def _is_close(self, one: np.ndarray, other: np.ndarray, largest: float) -> bool:
        if not _is_float(one):
            return np.array_equal(one, other)
        allowed = self._graph.rounding * max(_largest(one), _largest(other)) + NEGLIGIBLE * largest
        return _largest(one - other) <= allowed

    def _is_telling(self, uses: Sequence[int], written: Sequence[np.ndarray]) -> bool:
        """Returns whether some float is not 0 in what is written from the gradients of each loss, and all are
        finite."""
        largest = self._largest_by_targets(uses, written).values()
        return bool(largest) and all(math.isfinite(one) and one > 0 for one in largest)

    def _largest_by_targets(self, uses: Sequence[int], written: Sequence[np.ndarray]) -> dict[Targets, float]:
        """Returns the largest float that is written from the gradients of each loss. The gradients of one loss can be
        much smaller than those of another loss."""
        found: dict[Targets, float] = {}
        for place, array in zip(uses, written, strict=True):
            if _is_float(array):
                targets = self._graph.uses[place]
                found[targets] = float(np.maximum(_largest(array), found.get(targets, 0.0)))  # NaN if one is NaN
        return found


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind not in "biuOSU"


def _largest(array: np.ndarray) -> float:
    """Returns the largest absolute value, without a copy. It is not finite if a value is not."""
    return max(float(np.max(array)), -float(np.min(array))) if array.size else 0.0
