"""The values that a Keras model's `train_step` or `test_step` returns.

A value is a *total* if it depends on the batch only through metric variables to which the step adds. Totals are
computed from the sums of these variables over all steps and ranks. All other numbers are *values of a step*: Keras
shows those of the last step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from parallax_runner.errors import CaptureError
from parallax_runner.graph.metric import StepSums
from parallax_runner.graph.traced.batch_metrics import Written
from parallax_runner.graph.traced.keras_metrics import directions_of
from parallax_runner.graph.traced.replayed import Replayed
from parallax_runner.graph.traced.trace import Trace, is_loss

NO_SUM = "it is the result of a metric that is not computed from sums"  # `notes_of_left_out` names these metrics


@dataclass(frozen=True)
class StepLogs:
    """The logs of one step. `of_step` are the keys of the values of a step, and `left_out` maps the keys of values that
    cannot be shown to the reason."""

    sums: StepSums | None
    of_step: tuple[str, ...]
    left_out: Mapping[str, str]


def logs_of(model: Any, trace: Trace, returned: Mapping[Any, Any], written: Mapping[int, Written]) -> StepLogs:
    """Returns the logs of a traced step of a model. `returned` is what the step returned, and `written` is the result
    of `start_anew` for that step."""
    cuts = _Cuts.of(written.values())
    totals: dict[str, Any] = {}
    of_step: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for key, value in flat_logs(returned):
        reason = _why_left_out(value)
        tensor = None if reason else trace.tensor(value)
        reason = reason or cuts.why_unusable(tensor)
        if reason:
            left_out[key] = reason
        elif cuts.is_total(tensor):
            totals[key] = tensor
        else:
            of_step[key] = tensor
    if not totals and not of_step:
        return StepLogs(None, (), left_out)
    replayed = Replayed.of(trace.graph, totals, cuts.sums)
    order = [key for key, _ in flat_logs(returned) if key in totals or key in of_step]

    def results(sums: Sequence[Any], last: Sequence[float] = ()) -> dict[str, float]:
        found = replayed.run(sums) | dict(zip(of_step, last, strict=True))
        return {key: found[key] for key in order}

    with trace.graph.as_default():
        last = tuple(tf.cast(tf.reshape(tensor, []), tf.float64) for tensor in of_step.values())
    return StepLogs(StepSums(replayed.sums, results, directions_of(model, order), last=last), tuple(of_step), left_out)


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
    """Returns a note about the values of a step, and one about values that are not shown."""
    notes = []
    of_step = list(dict.fromkeys(key for one in logs for key in one.of_step))
    if of_step:
        notes.append(
            f"{_quoted(of_step)}: train_step or test_step returns a tensor, not the result of a metric, so History has "
            "the mean over the workers in the last step of an epoch, as Keras has the value of the last batch"
        )
    left_out = {key: reason for one in logs for key, reason in one.left_out.items() if reason != NO_SUM}
    notes += [f"«{key}», which train_step or test_step returns, is not shown: {why}" for key, why in left_out.items()]
    return tuple(notes)


def _quoted(keys: Sequence[str]) -> str:
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

    def why_unusable(self, tensor: Any) -> str | None:
        """Returns the reason why a value is neither a total nor a value of a step, or None."""
        if any(op.outputs and op.outputs[0].name in self.others for op in self._behind(tensor)):
            return NO_SUM
        return None

    def is_total(self, tensor: Any) -> bool:
        """Returns whether the value can be computed from constants and sums alone."""
        return not any(op.type == "Placeholder" or op.op_def.is_stateful for op in self._behind(tensor))

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
