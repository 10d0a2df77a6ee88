"""Checks the rewritten graph, and after each pass if it is wrong, so that the error names the pass that caused it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import tensorflow.compat.v1 as tf

from parallax_runner.errors import ParallaxError
from parallax_runner.graph.edit import LOOP_OPS
from parallax_runner.rewrite.rewrite_state import Rewrite


class RewriteError(ParallaxError):
    """A pass broke the graph. This is a bug in parallax_runner, not in the model."""


def check(rewrite: Rewrite, *, after: str, is_updated: bool = False) -> None:
    """Raises RewriteError if an op of the step waits for itself, or if an update reads a gradient that is not
    aggregated.

    With `is_updated`, the updates have already been moved to the devices of the placed variables. In this case, also
    raises RewriteError if an op still uses the original handle of such a variable.
    """
    needs = _needs_of_all([rewrite.train_op, *rewrite.step_ops])
    cycle = _cycle(needs)
    if cycle:
        raise RewriteError(f"after pass {after}: op «{cycle.name}» waits for itself")
    for op in needs:
        if op in rewrite.region and any(tensor.name in rewrite.replaced for tensor in op.inputs):
            raise RewriteError(f"after pass {after}: op «{op.name}» reads a gradient that is not aggregated")
        if op.type == "VarHandleOp" and op.name in rewrite.placements and is_updated:
            users = sorted(user.name for user in op.outputs[0].consumers() if user in needs)
            raise RewriteError(f"after pass {after}: {users} use variable «{op.name}», which is now sharded")


def _needs_of_all(starts: Iterable[tf.Operation]) -> dict[tf.Operation, list[tf.Operation]]:
    """Returns `starts` and all ops that they depend on, each with its direct dependencies.

    Reading an op's inputs is slow in TensorFlow, so each op is read once.
    """
    needs: dict[tf.Operation, list[tf.Operation]] = {}
    stack = list(starts)
    while stack:
        op = stack.pop()
        if op not in needs:
            needs[op] = [tensor.op for tensor in op.inputs] + op.control_inputs
            stack.extend(needs[op])
    return needs


def _cycle(needs: Mapping[tf.Operation, list[tf.Operation]]) -> tf.Operation | None:
    """Returns an op on a cycle, or None if there is no cycle. The back edges of loops are ignored."""
    waiting: dict[tf.Operation, int] = {}
    users: defaultdict[tf.Operation, list[tf.Operation]] = defaultdict(list)
    for op, its_needs in needs.items():
        ordered = [need for need in its_needs if need.type not in LOOP_OPS]
        waiting[op] = len(ordered)
        for need in ordered:
            users[need].append(op)
    ready = [op for op, count in waiting.items() if count == 0]
    done = 0
    while ready:
        op = ready.pop()
        done += 1
        for user in users[op]:
            waiting[user] -= 1
            if waiting[user] == 0:
                ready.append(user)
    return None if done == len(needs) else min((op for op, count in waiting.items() if count), key=lambda op: op.name)
