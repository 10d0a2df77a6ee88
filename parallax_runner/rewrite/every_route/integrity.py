"""Checks the graph after every pass, so that an error names the pass that caused it."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.errors import ParallaxError
from parallax_runner.graph import edit
from parallax_runner.rewrite.state import Rewrite

LOOP_OPS = frozenset({"NextIteration", "RefNextIteration"})


class RewriteError(ParallaxError):
    """A pass broke the graph. This is a bug in parallax_runner, not in the model."""


def check(rewrite: Rewrite, *, after: str, is_updated: bool = False) -> None:
    """Raises RewriteError if an op of the step waits for itself, or if an update reads a gradient that is not
    aggregated.

    With `is_updated`, the updates have already been moved to the devices of the placed variables. In this case, also
    raises RewriteError if an op still uses the original handle of such a variable.
    """
    step = edit.ancestors([rewrite.train_op, *rewrite.step_ops])
    cycle = _cycle(step)
    if cycle:
        raise RewriteError(f"after pass {after}: op «{cycle.name}» waits for itself")
    for op in step:
        if op in rewrite.region and any(tensor.name in rewrite.replaced for tensor in op.inputs):
            raise RewriteError(f"after pass {after}: op «{op.name}» reads a gradient that is not aggregated")
        if op.type == "VarHandleOp" and op.name in rewrite.placements and is_updated:
            users = sorted(user.name for user in op.outputs[0].consumers() if user in step)
            raise RewriteError(f"after pass {after}: {users} use variable «{op.name}», which is now sharded")


def _cycle(ops: set[tf.Operation]) -> tf.Operation | None:
    """Returns an op on a cycle, or None if there is no cycle. The back edges of loops are ignored."""
    waiting = {op: sum(1 for need in _needs(op) if need in ops and need.type not in LOOP_OPS) for op in ops}
    ready = [op for op, count in waiting.items() if count == 0]
    users: dict[tf.Operation, list[tf.Operation]] = {op: [] for op in ops}
    for op in ops:
        for need in _needs(op):
            if need in ops and need.type not in LOOP_OPS:
                users[need].append(op)
    done = 0
    while ready:
        op = ready.pop()
        done += 1
        for user in users[op]:
            waiting[user] -= 1
            if waiting[user] == 0:
                ready.append(user)
    return None if done == len(ops) else min((op for op, count in waiting.items() if count), key=lambda op: op.name)


def _needs(op: tf.Operation) -> list[tf.Operation]:
    return [tensor.op for tensor in op.inputs] + list(op.control_inputs)
