"""Updates the rows whose gradients are deferred (behind.py). The update runs during the next step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.rewrite.distributed_graph import Carried
from parallax_runner.rewrite.routes.alltoall.behind import Push
from parallax_runner.rewrite.routes.alltoall.by_table import cut
from parallax_runner.rewrite.routes.alltoall.row_exchange import Exchange, Message, side


@dataclass(frozen=True)
class CarriedPush:
    """The deferred gradients of a step. They are fetched with the step and fed to the next step.

    `rows` are the gradients by table, `route` describes the rows of `exchange`, and `counts` counts them.
    """

    exchange: Exchange
    rows: tuple[Carried, ...]
    route: tuple[Carried, ...]
    counts: tuple[Carried, ...]

    def arrive(self) -> list[Message]:
        """Sends the rows to their owners. Returns the rows that arrive. This is a collective: all ranks must run it."""
        return self.exchange.to_owners([one.fed for one in self.rows])

    def carried(self, applied: tf.Tensor | None) -> list[Carried]:
        """Returns the values to carry over to the next step. They contain no rows if `applied` (bool) is false. If
        `applied` is None, every step is applied."""
        if applied is None:
            return [*self.rows, *self.route, *self.counts]
        factor = tf.cast(applied, tf.int32)
        rows = [Carried(one.fed, one.fetched[: factor * tf.shape(one.fetched)[0]]) for one in (*self.rows, *self.route)]
        return [*rows, *(Carried(one.fed, one.fetched * factor) for one in self.counts)]


def carry(push: Push, gradients: Sequence[tf.Tensor]) -> CarriedPush:
    """Carries the deferred part of `gradients` over to the next step. Nothing is fed to the first step, so the first
    step receives no rows."""
    behind = push.behind
    rows = [carry_rows(left) for left in push.rows_behind(gradients)]
    own, sent_ranks, arrived_ranks = (
        carry_rows(each.whole) for each in (behind.own, behind.sent.ranks, behind.arrived.ranks)
    )
    sent_counts, arrived_counts = (carry_numbers(each.counts) for each in (behind.sent, behind.arrived))
    arrived = side(arrived_ranks.fed, arrived_counts.fed)
    exchange = dataclasses.replace(
        behind,
        sent=side(sent_ranks.fed, sent_counts.fed),
        arrived=arrived,
        own=cut(own.fed, arrived.ranks.lengths),
    )
    return CarriedPush(exchange, tuple(rows), (own, sent_ranks, arrived_ranks), (sent_counts, arrived_counts))


def carry_rows(rows: tf.Tensor) -> Carried:
    """Carries rows [n, …] over to the next step. The placeholder has no rows if it is not fed."""
    none = tf.zeros([0, *rows.shape[1:].as_list()], rows.dtype)
    return Carried(tf.placeholder_with_default(none, [None, *rows.shape[1:].as_list()]), rows)


def carry_numbers(numbers: tf.Tensor) -> Carried:
    """Carries a tensor with a static shape over to the next step. The placeholder is 0 if it is not fed."""
    return Carried(tf.placeholder_with_default(tf.zeros(numbers.shape, numbers.dtype), numbers.shape), numbers)


@dataclass(frozen=True)
class LaterUpdate:
    """The part of a step's update that `apply` runs during the next step.

    `carried[i]` contains the gradients that `pushes[i]` leaves for the next step. `numbers` are also carried, because
    the update reads them. `alone` is shared with the pushes.
    """

    pushes: tuple[Push, ...]
    carried: tuple[CarriedPush, ...]
    numbers: tuple[Carried, ...]
    apply: tf.Operation
    alone: tf.Tensor


class UpdateCopies:
    """Copies the updates of this rank's own rows. The copies apply the deferred gradients.

    `stands_for` maps the name of each replaced tensor to the gradient that replaces it. An update may also read
    numbers, such as a learning rate. These numbers are carried over to the update's copy, which runs one step later.
    """

    def __init__(self, stands_for: Mapping[str, tf.Tensor]) -> None:
        self._copies = dict(stands_for)
        self._copied: dict[tf.Operation, tf.Operation] = {}
        self._numbers: dict[str, Carried] = {}

    @property
    def numbers(self) -> list[Carried]:
        """The numbers that the copies read."""
        return list(self._numbers.values())

    def of(self, writes: set[tf.Operation]) -> list[tf.Operation]:
        """Copies ops that write rows, and all ops between the gradients and these writes. Returns the copied writes."""
        for op in edit.in_order(edit.ancestors(writes, stop_at=frozenset(self._copies))):
            reads = any(tensor.name in self._copies for tensor in op.inputs)
            if reads or any(control in self._copied for control in op.control_inputs):
                self._copy(op)
        return [self._copied[op] for op in sorted(writes, key=lambda op: op.name)]

    def _copy(self, op: tf.Operation) -> None:
        copy = edit.clone(
            op,
            [self._input(tensor) for tensor in op.inputs],
            name=f"{op.name}/behind",
            control_inputs=[self._copied[control] for control in op.control_inputs if control in self._copied],
            device=op.device,
        )
        self._copied[op] = copy
        for old, new in zip(op.outputs, copy.outputs, strict=True):
            new.set_shape(old.shape)
            self._copies[old.name] = new

    def _input(self, tensor: tf.Tensor) -> tf.Tensor:
        if tensor.name in self._copies:
            return self._copies[tensor.name]
        if tensor.dtype == tf.resource or tensor.op.type == "Const":
            return tensor
        if tensor.name not in self._numbers:
            self._numbers[tensor.name] = carry_numbers(tensor)
        return self._numbers[tensor.name].fed
