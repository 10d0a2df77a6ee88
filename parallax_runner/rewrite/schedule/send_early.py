"""Pass: send gradients before unrelated ops run, which overlaps communication with computation.

TensorFlow first runs the ops that became ready last. For example, the gradient of a softmax is ready before the
backward pass through an LSTM begins. With a single thread, however, this gradient would be merged and sent only after
that pass. In the same way, the gradients of the last layers would be sent only after the gradients of all other layers
have been computed.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from operator import or_

import tensorflow.compat.v1 as tf

from parallax_runner.collectives.chosen import is_exchange
from parallax_runner.graph import edit
from parallax_runner.graph.heavy_ops import heavy_ops
from parallax_runner.graph.marks import marks_behind, positions
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite

LOOP = "Enter"  # marks a loop: an op in a loop must not wait for an op outside the loop
BRANCH = "Switch"  # an op after a Switch may be skipped, and then ops that wait for this op would be skipped too
# Marks of the ops behind a tensor that is sent. The marks of heavy ops follow.
SPARSE, DENSE, HINDRANCE, FIRST_HEAVY = 1, 2, 4, 3


@rewrite_pass(reads=["train_op", "step_ops", "sent"])
def send_early(rewrite: Rewrite) -> None:
    """For each gradient that the step sends, finds the first heavy ops that the gradient does not need, and makes these
    ops wait until the gradient is ready to be sent.

    An op waits only for gradients that do not need the op and are sent before all gradients that need it. Therefore, no
    op waits for itself. The pass does nothing if the gradients depend on a loop. It also does nothing if a worker has
    several replicas, since one replica would wait for another.
    """
    single = rewrite.single
    parts: dict[int, set[tf.Operation]] = defaultdict(set)
    for gradient in single.gradients:
        parts[single.part_of(gradient.variable)].add(rewrite.tensor(gradient.values).op)
    backward = edit.ancestors(op for part in parts.values() for op in part)
    if rewrite.plan.replicas_per_worker > 1 or any(op.type == LOOP for op in backward):
        return
    outputs = [single.loss, *single.fetched_in_validation, *single.losses]
    # Ops that also run without training must not wait for a gradient.
    forward = edit.ancestors(rewrite.tensor(name).op for name in outputs)
    for number, part in sorted(parts.items()):
        # Ops that train a different part of the variables must not wait either.
        elsewhere = edit.ancestors(op for other in parts if other != number for op in parts[other])
        _let_wait(rewrite, number, edit.ancestors(part), forward | elsewhere)


def _let_wait(rewrite: Rewrite, part: int, backward: set[tf.Operation], never: set[tf.Operation]) -> None:
    """Makes ops that compute one part's gradients wait for gradients that are about to be sent. Ops in `never` do not
    wait."""
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
    """Returns the `departing` tensors, and other inputs of their collectives that are available at the same time, such
    as row counts."""
    sending = {tensor.name: tensor for tensor in departing}
    for op in (op for tensor in departing for op in _sent_by(tensor)):
        sending |= {tensor.name: tensor for tensor in op.inputs if heavy_ops(edit.ancestors([tensor.op])) <= needed}
    return [sending[name] for name in sorted(sending)]


def _hand_on(tensor: tf.Tensor) -> None:
    """Makes the ops that read a tensor, such as the ops that send it, run before the ops that only have a control
    dependency on the tensor.

    Among the ops that become ready, TensorFlow's executor continues with a cheap op, and starts expensive ops when the
    chain of cheap ops ends. An additional cheap op makes the ops that send the tensor part of this chain.
    """
    with tensor.graph.control_dependencies(None), tensor.graph.device(tensor.op.device):
        handed_on = tf.ensure_shape(tensor, tensor.shape)  # TensorFlow would remove an Identity
    edit.reconnect(tensor, handed_on, where=lambda op: op is not handed_on.op)


def _departures(
    rewrite: Rewrite, part: int, backward: set[tf.Operation]
) -> list[tuple[set[tf.Operation], list[tf.Tensor]]]:
    """Returns the tensors that a step sends together for one part of the variables, with the heavy ops that they need.

    The entry with the fewest heavy ops comes first. An entry contains all tensors that one collective sends (a bucket
    of dense gradients or of rows), or a sparse gradient that is sent to a server.
    """
    step = edit.ancestors([rewrite.train_op, *rewrite.step_ops])
    together = _sent_together(rewrite, part, step)
    heavy = list(heavy_ops(step))
    marks = marks_behind(step, _marked(rewrite, step, backward, heavy))
    found = []
    for sender, departing in together.items():
        needed = functools.reduce(or_, (marks[tensor.op] for tensor in departing.values()))
        gradients = SPARSE | DENSE if is_exchange(sender.type) else SPARSE
        is_hindered = needed & HINDRANCE
        if needed & gradients and not is_hindered:
            needed_heavy = {heavy[number] for number in positions(needed >> FIRST_HEAVY)}
            found.append((needed_heavy, [departing[name] for name in sorted(departing)]))
    return sorted(found, key=lambda departure: (len(departure[0]), departure[1][0].name))


def _sent_together(rewrite: Rewrite, part: int, step: set[tf.Operation]) -> dict[tf.Operation, dict[str, tf.Tensor]]:
    """Returns the tensors of one part of the variables that a step sends, by name, for each collective that sends them.
    A tensor that no collective sends stands alone."""
    together: dict[tf.Operation, dict[str, tf.Tensor]] = defaultdict(dict)
    for one in rewrite.sent:
        is_of_part = one.variable is None or rewrite.single.part_of(one.variable) == part
        if not is_of_part or one.tensor.op not in step:
            continue
        for sender in _sent_by(one.tensor) or [one.tensor.op]:
            together[sender][one.tensor.name] = one.tensor
    return together


def _marked(
    rewrite: Rewrite, step: set[tf.Operation], backward: set[tf.Operation], heavy: Sequence[tf.Operation]
) -> dict[tf.Operation, int]:
    """Marks the gradients, the ops that the computation must not wait for, and each heavy op."""
    marked: defaultdict[tf.Operation, int] = defaultdict(int)
    for one in rewrite.single.gradients:
        marked[rewrite.tensor(one.values).op] |= DENSE if one.indices is None else SPARSE
    for op in step:
        if op.type == BRANCH or _answers(op, backward):
            marked[op] |= HINDRANCE
    for number, op in enumerate(heavy):
        marked[op] |= 1 << (FIRST_HEAVY + number)
    return marked


def _sent_by(tensor: tf.Tensor) -> list[tf.Operation]:
    """Returns the collectives that read a tensor."""
    return [op for op in tensor.consumers() if is_exchange(op.type)]


def _answers(op: tf.Operation, backward: set[tf.Operation]) -> bool:
    """Returns whether an op is an exchange of a gradient. The computation must not wait for the result of such an
    exchange."""
    return is_exchange(op.type) and op not in backward


def _process(op: tf.Operation) -> tuple[str | None, int | None]:
    spec = tf.DeviceSpec.from_string(op.device)
    return spec.job, spec.task
