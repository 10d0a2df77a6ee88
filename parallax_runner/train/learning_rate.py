"""Sets the learning rate between two steps, as callbacks of Keras do."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.errors import PlanError
from parallax_runner.rewrite.distributed_graph import DistributedGraph


class LearningRate:
    """The ops that give one variable a scalar on every rank; make it before the graph is finalized.

    All ranks call `set` after the same step. A piece on a server gets the value from the chief.
    """

    def __init__(self, distributed: DistributedGraph, name: str) -> None:
        """`name` is the variable's in checkpoints. Raises PlanError where the graph has none of this name."""
        found = [variable for variable in distributed.variables if variable.name == name]
        if not found:
            raise PlanError(f"the learning rate «{name}» is no variable of the training step")
        copies = [variable for variable in distributed.copies if variable.name == name]
        is_chief = distributed.rank == 0
        with distributed.graph.as_default(), tf.device(distributed.device), tf.name_scope("learning_rate/"):
            self._value = tf.placeholder(found[0].dtype, [], name="value")
            pieces = [piece for variable in found for piece in variable.pieces if is_chief or not piece.is_shared]
            pieces += [piece for variable in copies for piece in variable.pieces]
            self._assign = tf.group(*(piece.assign(self._value) for piece in pieces))

    def set(self, session: tf.Session, value: float) -> None:
        """Gives the variable `value`."""
        session.run(self._assign, {self._value: value})
