"""Random graphs for tests of traversals."""

from __future__ import annotations

import random

import tensorflow.compat.v1 as tf


def random_graph(seed: int, ops: int = 60) -> tf.Graph:
    """Returns an acyclic graph of reads, sums and updates of three variables, with random data and control edges."""
    draw = random.Random(seed)
    with tf.Graph().as_default() as graph:
        variables = [tf.Variable(0.0, use_resource=True) for _ in range(3)]
        tensors, made = [tf.constant(1.0)], []
        for _ in range(ops):
            kind, controls = draw.choice(("read", "sum", "sum", "update")), draw.sample(made, min(len(made), 3))
            variable = draw.choice(variables)
            with tf.control_dependencies(controls):
                if kind == "read":
                    tensors.append(tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32))
                    made.append(tensors[-1].op)
                elif kind == "sum":
                    tensors.append(tf.add_n(draw.choices(tensors, k=2)))
                    made.append(tensors[-1].op)
                else:
                    made.append(variable.assign(draw.choice(tensors), read_value=False))
    return graph
