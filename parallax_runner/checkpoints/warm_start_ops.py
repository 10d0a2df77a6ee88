"""The ops that give a rank's variables values from the checkpoint of another run."""

from __future__ import annotations

from pathlib import Path

import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_ops import assigned_pieces, slice_spec
from parallax_runner.checkpoints.warm_start import Taken, WarmStart
from parallax_runner.files.literal_path import literal
from parallax_runner.rewrite.distributed_graph import DistributedGraph, LogicalVariable, Piece


class WarmStartOps:
    """Assigns the variables that a run takes. Create this object before the graph is finalized."""

    def __init__(self, distributed: DistributedGraph, start: WarmStart) -> None:
        self._start = start
        by_name = {one.name: one for one in start.taken}
        with distributed.graph.as_default(), tf.device(distributed.device), tf.name_scope("warm_start/"):
            self._prefix = tf.placeholder(tf.string, [], name="prefix")
            ops = [
                self._assign(variable, piece, by_name[variable.name])
                for variable, piece in assigned_pieces(distributed)
                if variable.name in by_name
            ]
            self._assign_all = tf.group(*ops)

    def run(self, session: tf.Session) -> None:
        """Assigns the variables. Raises tf.errors.OpError if the checkpoint cannot be read."""
        with literal(Path(self._start.prefix)) as path:
            session.run(self._assign_all, {self._prefix: path})

    def _assign(self, variable: LogicalVariable, piece: Piece, taken: Taken) -> tf.Operation:
        is_contiguous = piece.step == 1
        spec = slice_spec(variable.shape, piece) if is_contiguous else ""
        (value,) = tf.raw_ops.RestoreV2(
            prefix=self._prefix, tensor_names=[taken.source], shape_and_slices=[spec], dtypes=[tf.as_dtype(taken.dtype)]
        )
        if not is_contiguous:
            value = tf.ensure_shape(value, variable.shape)[piece.where]
        return piece.assign(tf.cast(value, variable.dtype))
