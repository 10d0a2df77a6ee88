"""Tries the losses of a step on a few real examples and on the two halves of these examples."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

from parallax_runner.graph.components import Specs, feature_of, type_spec
from parallax_runner.graph.generators import seeded_generators
from parallax_runner.graph.traced.imported import First
from parallax_runner.graph.traced.loss_batches import Batch, Halved, halved, with_zeros
from parallax_runner.graph.traced.loss_graph import LossGraph, terms_of
from parallax_runner.graph.traced.loss_kinds import LossKind, LossValues, loss_kind
from parallax_runner.graph.traced.loss_terms import LossTerm, TracedLosses, trace_losses
from parallax_runner.graph.traced.step_graph import StepGraph
from parallax_runner.graph.traced.step_trial import NOTHING, Offer, Proof, StepTrial
from parallax_runner.graph.traced.trace import Steps, eager_on_cpu
from parallax_runner.graph.traced.two_replicas import TwoReplicas

log = logging.getLogger(__name__)
# The number of examples in a trial, unless a step has fewer. More examples take longer and show nothing new.
EXAMPLES = 8
# A step for a batch, and for a half of it.
Traces: TypeAlias = tuple[TracedLosses, TracedLosses]


@dataclass(frozen=True)
class TriedTerm:
    """A term and its kind. `values` are those for real examples, or None if they do not show that the term is not a
    mean."""

    term: LossTerm
    kind: LossKind = LossKind.UNKNOWN
    values: LossValues | None = None


@dataclass(frozen=True)
class TriedLoss:
    """A loss of a step. The first fields are those of `StepLoss`. `proof` is what is proven about the loss if the
    script writes the step, or None if nothing is proven."""

    total: TriedTerm
    terms: tuple[TriedTerm, ...]
    adds_terms: bool
    proof: Proof | None = None


@dataclass(frozen=True)
class LossTrial:
    """Tries the losses of the traced `steps`. `features` contains the type of each feature, and `firsts` the initial
    values of the variables."""

    steps: Steps
    features: Specs
    firsts: Sequence[First]

    def run(self, read: Callable[[int], Batch], step_examples: int, offer: Offer = NOTHING) -> tuple[TriedLoss, ...]:
        """Returns the kinds of the losses. No variable of the model changes.

        `read` returns a batch with the given number of training examples. `step_examples` is the number of examples in
        a step of all replicas together, at least 2. The kind of a loss that cannot be evaluated is unknown.
        """
        size = min(EXAMPLES, step_examples) // 2 * 2
        started = time.perf_counter()
        with seeded_generators(1), eager_on_cpu():
            traces = self._trace(size), self._trace(size // 2)
            real = read(size)
            batches = [halved(one, self.features, size) for one in (real, with_zeros(real, self.features))]
            tried = _as_losses(traces[0], self._kinds(traces, batches))
            if any(not one.adds_terms and one.total.kind.differs for one in tried):
                tried = self._with_marks(tried, traces, batches, offer)
        told = "; ".join(f"{one.term.name}: {one.kind.value}" for loss in tried for one in (loss.total, *loss.terms))
        log.info("losses of %d examples against their halves (%.1f s): %s", size, time.perf_counter() - started, told)
        return tried

    def not_run(self) -> tuple[TriedLoss, ...]:
        """Returns the losses with an unknown kind."""
        with seeded_generators(1), eager_on_cpu():
            return _as_losses(trace_losses(self.steps, self.features), {})

    def _trace(self, examples: int) -> TracedLosses:
        """Traces the losses for batches of this size. Code in the script can depend on the size, as in training."""
        return trace_losses(
            self.steps, {name: type_spec(feature_of(spec), examples) for name, spec in self.features.items()}
        )

    def _kinds(self, traces: Traces, batches: Sequence[Halved]) -> dict[int, TriedTerm]:
        """Returns the terms that could be evaluated, by their numbers in the `LossGraph`."""
        graph, terms = LossGraph(*traces, self.firsts), terms_of(traces[0])
        real, with_many_zeros = batches
        # A session as a context manager would make its graph the default graph.
        with closing(graph.session()) as session:
            first = _trial(graph, session, real)
            again = _trial(graph, session, real)
            graph.vary(session)
            varied = _trial(graph, session, with_many_zeros)
        found: dict[int, TriedTerm] = {}
        for number in first.keys() | varied.keys():
            rounding = graph.rounding(number)
            values = [trial[number] for trial in (first, varied) if trial]
            repeats = not (first and again) or first[number].repeats(again[number], rounding)
            # A term that does not repeat draws random numbers, for example in a Python function.
            kind = loss_kind(values, rounding) if repeats else LossKind.UNKNOWN
            shows_it = bool(first) and not first[number].is_mean(rounding)
            found[number] = TriedTerm(terms[number], kind, first[number] if shows_it else None)
        return found

    def _with_marks(
        self, tried: Sequence[TriedLoss], traces: Traces, batches: Sequence[Halved], offer: Offer
    ) -> tuple[TriedLoss, ...]:
        """Returns the losses with the marks that make a step of the script exact."""
        kinds = {one.total.term.number: one.total.kind for one in tried}
        try:
            graph = StepGraph(*traces, self.firsts)
            with closing(graph.session()) as session:
                # Random weights are made up, and the gradients of equal weights can be 0.
                graph.vary(session)
                stages = [found for each in batches if (found := _stage(graph, session, each)) is not None]
                proven = StepTrial(graph, traces[0], stages, kinds, offer).proven()
        except Exception as error:  # the step can fail in any way, for example for gradients of another size
            log.info("the gradients could not be evaluated: %s: %s", type(error).__name__, error, exc_info=True)
            return tuple(tried)
        log.info("proven, by the number of the loss: %s", proven)
        return tuple(dataclasses.replace(one, proof=proven.get(one.total.term.number)) for one in tried)


def _stage(graph: StepGraph, session: Any, batches: Halved) -> TwoReplicas | None:
    """Returns the step of two replicas, or None if the model refuses the batch."""
    try:
        found = TwoReplicas(graph, session, batches)
        for target in graph.targets:
            found.total(target, ())
    except Exception as error:  # for example, an assertion in the model
        log.info("the step could not be evaluated: %s: %s", type(error).__name__, error)
        return None
    return found


def _trial(graph: LossGraph, session: Any, batches: Halved) -> dict[int, LossValues]:
    """Returns the values of the usable terms for a batch and its halves. The dict is empty if the model refuses the
    batch."""
    try:
        whole = graph.evaluate(session, batches[0], is_half=False)
        first, second = (graph.evaluate(session, each, is_half=True) for each in batches[1:])
    except Exception as error:  # for example, an assertion in the model
        log.info("the losses could not be evaluated: %s: %s", type(error).__name__, error)
        return {}
    values = (*whole.values(), *first.values(), *second.values())
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    return {number: LossValues(whole[number], first[number], second[number], largest) for number in whole}


def _as_losses(traced: TracedLosses, found: Mapping[int, TriedTerm]) -> tuple[TriedLoss, ...]:
    tried = [found.get(number, TriedTerm(term)) for number, term in enumerate(terms_of(traced))]
    losses = []
    for loss in traced.losses:
        (total, *terms), tried = tried[: 1 + len(loss.terms)], tried[1 + len(loss.terms) :]
        losses.append(TriedLoss(total, tuple(terms), loss.adds_terms))
    return tuple(losses)
