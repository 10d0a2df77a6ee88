"""Sets learning rates between two steps, as Keras callbacks do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_ops import assigned_pieces
from parallax_runner.errors import PlanError
from parallax_runner.rewrite.distributed_graph import DistributedGraph


class LearningRates:
    """The ops that assign scalars to variables on every rank. Create this object before the graph is finalized.

    All ranks must call `set` after the same step. Only the chief assigns a value to a piece on a server.
    """

    def __init__(self, distributed: DistributedGraph, names: Sequence[str]) -> None:
        """Creates the ops for the variables whose names in checkpoints are `names`. Raises PlanError if the graph has
        no such variable."""
        self._values: dict[str, tf.Tensor] = {}
        self._assigns: dict[str, tf.Operation] = {}
        dtypes = {variable.name: variable.dtype for variable in distributed.variables}
        for name in names:
            if name not in dtypes:
                raise PlanError(f"the learning rate cannot be set: the training step has no variable «{name}»")
            pieces = [piece for variable, piece in assigned_pieces(distributed) if variable.name == name]
            with distributed.graph.as_default(), tf.device(distributed.device), tf.name_scope("learning_rate/"):
                self._values[name] = tf.placeholder(dtypes[name], [], name="value")
                self._assigns[name] = tf.group(*(piece.assign(self._values[name]) for piece in pieces))

    def set(self, session: tf.Session, rates: Mapping[str, float]) -> None:
        """Assigns the values in `rates` to the variables with these names."""
        if rates:
            session.run([self._assigns[name] for name in rates], {self._values[name]: rates[name] for name in rates})
