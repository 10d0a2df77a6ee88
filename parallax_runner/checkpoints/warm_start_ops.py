"""The ops that give a rank's variables values from the checkpoint of another run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_ops import assigned_pieces
from parallax_runner.checkpoints.slices import slice_spec
from parallax_runner.checkpoints.warm_start import Taken, WarmStart
from parallax_runner.data.table.vocabularies import FRESH
from parallax_runner.files.literal_path import literal
from parallax_runner.rewrite.distributed_graph import DistributedGraph, LogicalVariable, Piece


class WarmStartOps:
    """Assigns the variables that a run takes. Create this object before the graph is finalized."""

    def __init__(self, distributed: DistributedGraph, start: WarmStart, run_dir: Path) -> None:
        """`run_dir` has the files of rows that are taken by key."""
        self._start, self._run_dir = start, run_dir
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
        if taken.rows is not None:
            return self._assign_by_key(variable, piece, taken, np.load(self._run_dir / taken.rows))
        is_contiguous = piece.step == 1
        spec = slice_spec(variable.shape, piece) if is_contiguous else ""
        (value,) = tf.raw_ops.RestoreV2(
            prefix=self._prefix, tensor_names=[taken.source], shape_and_slices=[spec], dtypes=[tf.as_dtype(taken.dtype)]
        )
        if not is_contiguous:
            value = tf.ensure_shape(value, variable.shape)[piece.where]
        return piece.assign(tf.cast(value, variable.dtype))

    def _assign_by_key(self, variable: LogicalVariable, piece: Piece, taken: Taken, rows: np.ndarray) -> tf.Operation:
        """Assigns the rows that `rows` names. The others keep their initial values."""
        (source,) = tf.raw_ops.RestoreV2(
            prefix=self._prefix, tensor_names=[taken.source], shape_and_slices=[""], dtypes=[tf.as_dtype(taken.dtype)]
        )
        own = rows[piece.where[0]]
        given = tf.cast(tf.gather(source, np.maximum(own, 0)), variable.dtype)
        values = given[(slice(None), *piece.where[1:])]
        return piece.assign_rows(tf.ensure_shape(values, piece.shape), tf.constant(own != FRESH))
