"""Counts, while a step runs, the bytes that it sends through collectives and the bytes that it exchanges with
servers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.plan.plan import Plan
from parallax_runner.rewrite.conditional import depends_on, or_zero
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.rewrite_state import Rewrite


def count_sent_bytes(rewrite: Rewrite) -> tf.Tensor:
    """Returns a tensor ([variables + 1], float64) to fetch with a step: the bytes that the step sends for this rank.

    The bytes are computed from the shapes of the tensors that are sent. There is one entry for each variable of the
    plan, in the plan's order, and a last entry for bytes that belong to no single variable.
    """
    step = edit.ancestors([rewrite.train_op, *rewrite.step_ops, rewrite.tensor(rewrite.single.loss).op])
    sent = [one for one in rewrite.sent if one.tensor.op in step]
    totals = []
    for condition in (
        []
        if rewrite.coordination.admission is None
        else [rewrite.coordination.leads, rewrite.coordination.admission.admitted]
    ):
        is_dead = {one.tensor.name for one in sent if depends_on(condition, one.tensor)}
        totals.append(or_zero(condition, _bytes(rewrite.plan, [one for one in sent if one.tensor.name in is_dead])))
        sent = [one for one in sent if one.tensor.name not in is_dead]
    return tf.add_n([_bytes(rewrite.plan, sent), *totals])


def _bytes(plan: Plan, sent: Sequence[Sent]) -> tf.Tensor:
    places = {variable.name: place for place, variable in enumerate(plan.variables)}
    known = np.zeros(len(places) + 1)
    running: list[tuple[tf.Tensor, float, int]] = []
    for one in sent:
        place = len(places) if one.variable is None else places[one.variable]
        number, value_bytes = _number(one), one.tensor.dtype.size * one.times
        if isinstance(number, tf.Tensor):
            running.append((number, value_bytes, place))
        else:
            known[place] += number * value_bytes
    if not running:
        return tf.constant(known)
    numbers, value_bytes_of, places_of = zip(*running, strict=True)
    sizes = tf.cast(tf.stack(numbers), tf.float64) * tf.constant(value_bytes_of, tf.float64)
    return tf.math.unsorted_segment_sum(sizes, tf.constant(places_of), len(known)) + known


def _number(one: Sent) -> float | tf.Tensor:
    """Returns the number of values that `one` sends each time, as a Python number if it is known before the step
    runs."""
    if one.values is not None:
        return one.values
    known = one.tensor.shape.num_elements()
    return tf.size(one.tensor) if known is None else known
