"""Pass: gradients leave before what does not need them is computed, so that they travel meanwhile.

TensorFlow runs what became ready last first: the softmax's gradient is ready before the backward pass through an LSTM,
and with one thread would be merged and sent after it, as the gradients of the last layers would be after all layers'.
"""

from __future__ import annotations

from collections import defaultdict

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.heavy_ops import heavy_ops
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.state import Rewrite

LOOP = "Enter"  # an op in such a loop must not wait for one outside
COLLECTIVE = "Horovod"  # what types of ops begin with
BRANCH = "Switch"  # behind it an op may not run, and then nor would one that waits for it


@rewrite_pass(reads=["train_op", "step_ops", "sent"])
def send_early(rewrite: Rewrite) -> None:
    """Lets the first heavy ops that a departing gradient does not need wait until it is ready to leave.

    In the order in which gradients depart: an op waits only for those that depart before any that needs it, so nothing
    waits for itself. Replicas of one worker are left alone: one of them would wait for another.
    """
    single = rewrite.single
    parts: dict[int, set[tf.Operation]] = defaultdict(set)
    for gradient in single.gradients:
        parts[single.part_of(gradient.variable)].add(rewrite.tensor(gradient.values).op)
    backward = edit.ancestors(op for part in parts.values() for op in part)
    if rewrite.plan.replicas_per_worker > 1 or any(op.type == LOOP for op in backward):
        return
    outputs = [single.loss, *single.fetched_in_validation, *single.losses]
    # What is also computed where nothing is trained must not wait for a gradient.
    forward = edit.ancestors(rewrite.tensor(name).op for name in outputs)
    for number, part in sorted(parts.items()):
        # Nor what another part of the variables is trained with.
        elsewhere = edit.ancestors(op for other in parts if other != number for op in parts[other])
        _let_wait(rewrite, number, edit.ancestors(part), forward | elsewhere)


def _let_wait(rewrite: Rewrite, part: int, backward: set[tf.Operation], never: set[tf.Operation]) -> None:
    """In what makes the gradients of one part; ops of `never` do not wait."""
    later = heavy_ops(backward) - never
    for needed, departing in _departures(rewrite, part, backward):
        later -= needed
        computed = edit.descendants([output for op in later for output in op.outputs], within=backward)
        here = {_process(tensor.op) for tensor in departing}
        waiting = [op for op in sorted(later - computed, key=lambda op: op.name) if {_process(op)} == here]
        if waiting:
            sending = _inputs_of_sending(departing, needed)
            for op in waiting:
                edit.set_control_inputs(op, [*op.control_inputs, *(tensor.op for tensor in sending)])
            for tensor in sending:
                _hand_on(tensor)


def _inputs_of_sending(departing: list[tf.Tensor], needed: set[tf.Operation]) -> list[tf.Tensor]:
    """What departs, and what else a collective that sends it reads and can have by then: how much is for each rank."""
    sending = {tensor.name: tensor for tensor in departing}
    for op in (op for tensor in departing for op in _sent_by(tensor)):
        sending |= {tensor.name: tensor for tensor in op.inputs if heavy_ops(edit.ancestors([tensor.op])) <= needed}
    return [sending[name] for name in sorted(sending)]


def _hand_on(tensor: tf.Tensor) -> None:
    """Has what reads a tensor taken up before the ops that wait for it.

    TensorFlow's executor goes on with what is cheap among the ops that became ready, and leaves what takes time for
    when that chain ends. Behind one more cheap op, sending is part of the chain.
    """
    with tensor.graph.control_dependencies(None), tensor.graph.device(tensor.op.device):
        handed_on = tf.ensure_shape(tensor, tensor.shape)  # TensorFlow takes an Identity out again
    edit.reconnect(tensor, handed_on, where=lambda op: op is not handed_on.op)


def _departures(
    rewrite: Rewrite, part: int, backward: set[tf.Operation]
) -> list[tuple[set[tf.Operation], list[tf.Tensor]]]:
    """What a step hands over at a time of one part of the variables, and the heavy ops that it needs; that of fewest
    first.

    For a collective all that it sends, a bucket of dense gradients or of rows; for a server a sparse gradient.
    """
    step = edit.ancestors([rewrite.train_op, *rewrite.step_ops])
    together: dict[tf.Operation, dict[str, tf.Tensor]] = defaultdict(dict)
    sent = [one for one in rewrite.sent if one.variable is None or rewrite.single.part_of(one.variable) == part]
    for tensor in (one.tensor for one in sent if one.tensor.op in step):
        for sender in _sent_by(tensor) or [tensor.op]:
            together[sender][tensor.name] = tensor
    sparse = {rewrite.tensor(one.values).op for one in rewrite.single.gradients if one.indices is not None}
    dense = {rewrite.tensor(one.values).op for one in rewrite.single.gradients} - sparse
    found = []
    for sender, departing in together.items():
        needed = edit.ancestors(tensor.op for tensor in departing.values())
        is_gradient = needed & sparse or (sender.type.startswith(COLLECTIVE) and needed & dense)
        if is_gradient and not any(op.type == BRANCH or _answers(op, backward) for op in needed):
            found.append((heavy_ops(needed), [departing[name] for name in sorted(departing)]))
    return sorted(found, key=lambda departure: (len(departure[0]), departure[1][0].name))


def _sent_by(tensor: tf.Tensor) -> list[tf.Operation]:
    """The collectives that read it."""
    return [op for op in tensor.consumers() if op.type.startswith(COLLECTIVE)]


def _answers(op: tf.Operation, backward: set[tf.Operation]) -> bool:
    """Whether an op is an exchange that a gradient has been through: computing must not wait for what comes of it."""
    return op.type.startswith(COLLECTIVE) and op not in backward


def _process(op: tf.Operation) -> tuple[str | None, int | None]:
    spec = tf.DeviceSpec.from_string(op.device)
    return spec.job, spec.task
