"""Random numbers in an evaluation.

Keras advances the state of a seed generator with each draw. An evaluation writes no variable, because each rank
evaluates batches of its own. If it draws twice from one generator, as a ranking metric does that breaks ties at random,
the second draw takes the advanced state as a value of the evaluation. Each batch begins with the state that training
left (docs/design/0089-random-numbers-in-an-evaluation.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from parallax_runner.graph.traced.batch_metrics import KNOWN, as_values_of_step, users_of, wait_no_longer
from parallax_runner.graph.traced.variables import TracedVariable

# Keras gives this name to the state of each seed generator.
STATE = "seed_generator_state"


def leave_seeds(graph: Any, variables: Iterable[TracedVariable]) -> None:
    """Replaces the states of Keras' seed generators in a traced evaluation with values.

    Keeps a state that an op uses in any way other than reads and writes."""
    states = [one.variable for one in variables if one.name.rsplit("/", 1)[-1].startswith(STATE)]
    users, replaced = users_of(graph, states), set[Any]()
    for state in states:
        ops = users.get(id(state), [])
        writes = {op for op in ops if op.type != "ReadVariableOp"}
        if writes and all(op.type in KNOWN for op in ops):
            with graph.as_default():
                left_by_training = tf.raw_ops.ReadVariableOp(resource=ops[0].inputs[0], dtype=state.dtype)
                as_values_of_step(ops, left_by_training)
            replaced |= writes
    wait_no_longer(graph, replaced)
