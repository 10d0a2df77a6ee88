"""The values that a Keras model's `train_step` or `test_step` returns.

A value is a *total* if it depends on the batch only through metric variables to which the step adds. Totals are
computed from the sums of these variables over all steps and ranks. All other numbers are *values of a step*: Keras
shows those of the last step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import tensorflow as tf

from parallax_runner.errors import CaptureError
from parallax_runner.graph.metric import StepSums
from parallax_runner.graph.traced.batch_metrics import Written
from parallax_runner.graph.traced.keras_metrics import directions_of
from parallax_runner.graph.traced.replayed import Replayed
from parallax_runner.graph.traced.trace import Trace, is_loss

BY_STEP = "train_step or test_step"


class Kind(Enum):
    """How a value is shown. A MIXED value is one of a step that also depends on metrics. A metric that is no sum is not
    shown, nor is an OTHER value."""

    TOTAL = 1
    OF_STEP = 2
    MIXED = 3
    NO_SUM = 4
    OTHER = 5


SHOWN = (Kind.TOTAL, Kind.OF_STEP, Kind.MIXED)


@dataclass(frozen=True)
class Value:
    """A value that a step returns, and the reason if its kind is OTHER."""

    key: str
    tensor: Any
    kind: Kind
    reason: str = ""


@dataclass(frozen=True)
class StepLogs:
    """The values that a step returns. `sums` is None if no value is shown."""

    values: tuple[Value, ...]
    sums: StepSums | None


def logs_of(model: Any, trace: Trace, returned: Mapping[Any, Any], written: Mapping[int, Written]) -> StepLogs:
    """Returns the logs of a traced step of a model. `returned` is what the step returned, and `written` is the result
    of `start_anew` for that step."""
    cuts = _Cuts.of(written.values())
    values = tuple(_value(key, one, trace, cuts) for key, one in flat_logs(returned))
    shown = [one for one in values if one.kind in SHOWN]
    return StepLogs(values, _step_sums(model, trace.graph, cuts, shown) if shown else None)


def _value(key: str, returned: Any, trace: Trace, cuts: _Cuts) -> Value:
    reason = _why_left_out(returned)
    if reason is not None:
        return Value(key, None, Kind.OTHER, reason)
    tensor = trace.tensor(returned)
    return Value(key, tensor, cuts.kind_of(tensor))


def _step_sums(model: Any, graph: Any, cuts: _Cuts, shown: Sequence[Value]) -> StepSums:
    totals = {one.key: one.tensor for one in shown if one.kind == Kind.TOTAL}
    of_step = {one.key: one.tensor for one in shown if one.kind != Kind.TOTAL}
    keys = [one.key for one in shown]
    replayed = Replayed.of(graph, totals, cuts.sums)

    def results(sums: Sequence[Any], last: Sequence[float] = ()) -> dict[str, float]:
        found = replayed.run(sums) | dict(zip(of_step, last, strict=True))
        return {key: found[key] for key in keys}

    with graph.as_default():
        values = tuple(tf.cast(tf.reshape(tensor, []), tf.float64) for tensor in of_step.values())
    return StepSums(replayed.sums, results, directions_of(model, keys), last=values)


def flat_logs(returned: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    """Returns the values by key, with the values of inner dicts in place of these dicts, as Keras' callbacks get them.
    Of several values with one key, the last one counts."""

    def each(logs: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
        for key, value in logs.items():
            if isinstance(value, Mapping):
                yield from each(value)
            else:
                yield str(key), value

    return list(dict(each(returned)).items())


def _why_left_out(value: Any) -> str | None:
    if not isinstance(value, tf.Tensor):
        return "it is not a tensor"
    if value.shape.num_elements() != 1:
        return f"its shape is {value.shape}"
    if not (value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool):
        return f"its type is {value.dtype.name}"
    return None


def loss_of_model(train: Trace) -> tuple[Any, tuple[str, ...]]:
    """Returns the loss of a traced `train_step`, and notes about it. Raises CaptureError if the step has no loss."""
    loss = dict(flat_logs(train.returned)).get("loss")
    if is_loss(loss):
        return train.tensor(loss), ()
    if not train.losses:
        raise CaptureError(
            "train_step returns no «loss», and it computes no gradients of variables with tf.GradientTape: return the "
            f"loss, a floating-point scalar, under 'loss'; it returned {train.returned!r}"
        )
    with train.graph.as_default():
        scalars = [tf.reduce_sum(one) for one in train.losses]
        total = tf.add_n([tf.cast(one, scalars[0].dtype) for one in scalars])
    which = "the loss" if len(scalars) == 1 else f"the sum of the {len(scalars)} losses"
    return total, (
        f"train_step returns no «loss»: the loss that the run shows and checks for NaN is {which} whose gradients "
        "train_step computes",
    )


def notes_on_logs(logs: Sequence[StepLogs]) -> tuple[str, ...]:
    """Returns notes about the values of a training step, those that also depend on metrics, and those that are not
    shown. `logs` has the logs of the training step first. `notes_of_left_out` names the metrics that are no sums."""
    values = [value for one in logs for value in one.values]
    notes = [f"«{one.key}», which {BY_STEP} returns, is not shown: {one.reason}" for one in values if one.reason]
    of_step = _quoted(logs[0].values, (Kind.OF_STEP, Kind.MIXED))  # those of a validation are exact
    if of_step:
        notes.append(
            f"{of_step}: train_step returns a tensor, not the result of a metric, so History has the mean over the "
            "workers in the last step of an epoch, as Keras has the value of the last batch"
        )
    mixed = _quoted(values, (Kind.MIXED,))
    if mixed:
        notes.append(
            f"{mixed}: {BY_STEP} computes it from a metric and from the batch. Here the metric counts the last batch "
            "alone, but in Keras all batches of the epoch: compute it from metrics alone"
        )
    return tuple(dict.fromkeys(notes))


def _quoted(values: Iterable[Value], kinds: Collection[Kind]) -> str:
    keys = dict.fromkeys(one.key for one in values if one.kind in kinds)
    return ", ".join(f"«{key}»" for key in keys)


@dataclass(frozen=True)
class _Cuts:
    """The tensors through which a step reads metric variables. `sums` maps the names of reads of sums to the last
    values of these sums. `others` are the names of reads of other last values."""

    sums: Mapping[str, Any]
    others: frozenset[str]

    @classmethod
    def of(cls, written: Iterable[Written]) -> _Cuts:
        sums: dict[str, Any] = {}
        others: set[str] = set()
        for one in written:
            last = [name for name, is_last in one.reads.items() if is_last]
            if one.is_sum:
                sums |= dict.fromkeys(last, one.value)
            else:
                others |= set(last)
        return cls(sums, frozenset(others))

    def kind_of(self, tensor: Any) -> Kind:
        """Returns the kind of a value."""
        behind = list(self._behind(tensor))
        if any(op.outputs and op.outputs[0].name in self.others for op in behind):
            return Kind.NO_SUM
        if not any(op.type == "Placeholder" or op.op_def.is_stateful for op in behind):
            return Kind.TOTAL
        reads_sums = any(one.name in self.sums for op in behind for one in op.inputs)
        return Kind.MIXED if reads_sums else Kind.OF_STEP

    def _behind(self, tensor: Any) -> Iterator[Any]:
        """Yields the ops that the value depends on, up to the reads of sums."""
        waiting, seen = [tensor], set()
        while waiting:
            one = waiting.pop()
            if one.name in self.sums or one.op in seen:
                continue
            seen.add(one.op)
            yield one.op
            waiting += one.op.inputs
