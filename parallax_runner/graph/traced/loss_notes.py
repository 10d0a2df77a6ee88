"""Notes on the losses of a model that are not a mean over the examples of a step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from parallax_runner.graph.single_device_graph import Divisor
from parallax_runner.graph.traced.loss_batches import Batch
from parallax_runner.graph.traced.loss_kinds import LossKind
from parallax_runner.graph.traced.loss_terms import LossTerm
from parallax_runner.graph.traced.loss_trial import LossTrial, TriedLoss, TriedTerm
from parallax_runner.graph.traced.step_trial import Offer, Proof

log = logging.getLogger(__name__)
SUMS = ("sum", "none")  # the gradient of a loss without a reduction is the gradient of its sum
MEAN_OF_WEIGHTS = "mean_with_sample_weight"
MEANS = ("sum_over_batch_size", "mean")
TO_A_MEAN = {
    "compile": "Return one value for each example from the loss function, or use ops.mean instead of ops.sum in it",
    "loss": "Use ops.mean instead of ops.sum",
    "add_loss": "Pass a mean over the examples to add_loss: use ops.mean, or divide by ops.shape(…)[0]",
    "average": "Leave global_batch_size out",
    "step": "Use a mean over the examples, such as tf.reduce_mean, instead of a sum",
}
TO_EXAMPLES = {
    "compile": "Let the loss divide by the number of examples",
    "loss": "Divide by the number of examples",
    "add_loss": "Pass a mean over the examples to add_loss",
    "average": "Divide by the number of examples",
    "step": "Divide by the number of examples",
}


@dataclass(frozen=True)
class LossNotes:
    """What a trial shows about losses. `sums` are the numbers of the marks that count: of sums over examples, and in a
    step that the script writes also of sums that are divided by a count. `notes` name each term that makes a step of
    several replicas differ from a step of one device."""

    notes: tuple[str, ...]
    sums: frozenset[int] = frozenset()


def notes_on_losses(
    trial: LossTrial,
    read: Callable[[int], Batch],
    *,
    replicas: int,
    step_examples: int,
    exact: Collection[Divisor] = (),
    is_uneven: bool = False,
) -> LossNotes:
    """Tries the losses of a step.

    `read` returns a batch with the given number of training examples, and `step_examples` is the number of examples in
    a step of all `replicas` together. `exact` are the divisors that rewriting can replace: their losses need no note if
    they are sums, or divide by a mask or by weights. In a step that the script writes, a trial must prove it.
    `is_uneven` says whether replicas can have different numbers of examples. If the losses cannot be tried, the notes
    follow from the reductions and masks of Keras losses alone.
    """
    sums, notes = set[int](), list[str]()
    terms = {one.term for one in exact}
    for loss in _tried(trial, read, step_examples, Offer(tuple(exact), is_uneven)):
        if loss.proof is not None:
            sums |= loss.proof.marks or set()
            notes += _notes_on_step(loss, loss.proof, replicas)
            continue
        for one in differing_terms(loss):
            number = one.term.number
            if not loss.adds_terms or number not in terms or not _has_divisor(one):
                notes.append(_note(one, replicas))
            elif one.kind == LossKind.SUM:
                sums.add(number)
    return LossNotes(tuple(dict.fromkeys(notes)), frozenset(sums))


def _tried(trial: LossTrial, read: Callable[[int], Batch], step_examples: int, offer: Offer) -> tuple[TriedLoss, ...]:
    try:
        return trial.run(read, step_examples, offer)
    except Exception as error:  # the model, or the data, can fail in any way; the workers report such a failure
        log.warning("the losses could not be tried: %s: %s", type(error).__name__, error, exc_info=True)
        return _not_tried(trial)


def _has_divisor(tried: TriedTerm) -> bool:
    """Returns whether the term is a sum over examples that the step divides by 1, a number of values or a sum of
    weights."""
    return tried.kind == LossKind.SUM or _divides_by_mask(tried.term) or _divides_by_weights(tried.term)


def differing_terms(loss: TriedLoss) -> list[TriedTerm]:
    """Returns the terms of a loss that are a sum, or neither a mean nor a sum. If the loss as a whole is not a mean for
    another reason, returns the loss itself."""
    total = _with_kind(loss.total)
    if not loss.adds_terms and total.kind in (LossKind.MEAN, LossKind.CONSTANT):
        return []  # for example, the script divides the sum of a Keras loss by the number of examples
    terms = [one for one in map(_with_kind, loss.terms) if one.kind.differs]
    if terms:
        return terms
    return [total] if total.kind.differs else []


def _notes_on_step(loss: TriedLoss, proof: Proof, replicas: int) -> Iterator[str]:
    """Yields a note if the gradients of a loss are divided by a mark, but not the loss itself, or if the step divides
    gradients by a number of a replica."""
    term = loss.total.term
    if proof.marks is None and loss.total.kind.differs:
        yield (
            f"{term.name} is not a mean over examples{_shown(loss.total)}, and the step divides its gradients by a "
            "number that depends on the batch. Each replica divides by the number for its own examples, so a step "
            "whose replicas have different numbers of examples differs from one device. Divide the loss instead of its "
            "gradients, or drop the partial batches of the data with drop_remainder=True"
        )
    if term.number in (proof.marks or ()):
        yield (
            f"{term.name} is a sum over examples{_shown(loss.total)}. A step uses the sum of the gradients of its "
            f"{replicas} replicas, as on one device. If the step returns this loss, the mean of its values on the "
            "replicas is shown"
        )


def _not_tried(trial: LossTrial) -> tuple[TriedLoss, ...]:
    try:
        return trial.not_run()
    except Exception as error:
        log.warning("the losses could not be read: %s: %s", type(error).__name__, error, exc_info=True)
        return ()


def _with_kind(tried: TriedTerm) -> TriedTerm:
    """Returns the term with the kind that follows from its reduction, if the trial does not show another kind.

    A mask may happen to be equal in both halves of the tried batch.
    """
    term = tried.term
    if _divides_by_mask(term) or _divides_by_weights(term):
        read = LossKind.NEITHER
    elif term.reduction in SUMS:
        read = LossKind.SUM
    else:
        return tried
    is_decided = tried.kind.differs or (tried.kind == LossKind.MEAN and read == LossKind.SUM)
    return tried if is_decided else TriedTerm(term, read)


def _divides_by_mask(term: LossTerm) -> bool:
    return term.is_masked and term.reduction in MEANS


def _divides_by_weights(term: LossTerm) -> bool:
    return (term.is_masked or term.is_weighted) and term.reduction == MEAN_OF_WEIGHTS


def _note(tried: TriedTerm, replicas: int) -> str:
    return f"{tried.term.name} {' '.join(_sentences(tried, replicas))}"


def _sentences(tried: TriedTerm, replicas: int) -> Iterator[str]:
    term = tried.term
    if tried.kind == LossKind.SUM:
        yield f"is a sum over examples{_shown(tried)}."
        yield f"A step uses the mean of the sums of its {replicas} replicas, so this loss and its gradients are"
        yield f"{replicas} times smaller than on one device. {_to_a_mean(term, replicas)}"
    elif _divides_by_mask(term):
        yield "is masked, and each replica divides by the number of its own examples or positions that are not masked:"
        yield "a step differs from one device if these numbers differ. Pass weights of 0 as sample_weight instead of a"
        yield "mask"
    elif _divides_by_weights(term):
        yield "divides by the sum of weights, and each replica divides by the sum for its own examples: a step differs"
        yield "from one device if these sums differ. Use reduction='sum_over_batch_size'"
    else:
        yield f"is neither a mean nor a sum over examples{_shown(tried)}."
        yield f"Each of the {replicas} replicas computes it for its own examples, and a step uses the mean, so a step"
        yield f"differs from one device. {TO_EXAMPLES[term.call]} instead of by a number that depends on the batch,"
        yield "such as a sum of weights. If the loss compares examples with each other, a replica compares only its own"


def _to_a_mean(term: LossTerm, replicas: int) -> str:
    if term.reduction not in SUMS:
        return f"{TO_A_MEAN[term.call]}, or multiply the loss by {replicas}"
    factor = f"set loss_weights to {replicas}" if term.call == "compile" else f"multiply the loss by {replicas}"
    return f"Use reduction='sum_over_batch_size', or {factor}"


def _shown(tried: TriedTerm) -> str:
    if tried.values is None:
        return ""
    values = tried.values
    return f" ({values.whole:.4g} for a batch, {values.first:.4g} and {values.second:.4g} for its halves)"
