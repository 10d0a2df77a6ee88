"""The ops that give a rank's variables values from the checkpoint of another run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import block_rows_of
from parallax_runner.checkpoints.checkpoint_ops import assigned_pieces
from parallax_runner.checkpoints.restore import Assigned, Restore
from parallax_runner.checkpoints.row_blocks import BLOCK_BYTES
from parallax_runner.checkpoints.warm_start import Taken, WarmStart
from parallax_runner.data.table.vocabularies import FRESH
from parallax_runner.files.literal_path import literal
from parallax_runner.rewrite.distributed_graph import DistributedGraph, LogicalVariable, Piece


class WarmStartOps:
    """Assigns the variables that a run takes. Create this object before the graph is finalized.

    A rank that has only some rows of a large variable takes them block by block, as when it restores a checkpoint. If
    rows are taken by key, or if a file has the value, a rank reads the whole variable. Variables of at most
    `block_bytes` bytes are never taken in blocks.
    """

    def __init__(
        self, distributed: DistributedGraph, start: WarmStart, run_dir: Path, block_bytes: int = BLOCK_BYTES
    ) -> None:
        """`run_dir` has the files that `start` names."""
        self._start, self._run_dir = start, run_dir
        by_name = {one.name: one for one in start.taken}
        found = [
            (variable, piece, by_name[variable.name])
            for variable, piece in assigned_pieces(distributed)
            if variable.name in by_name
        ]
        with distributed.graph.as_default(), tf.device(distributed.device), tf.name_scope("warm_start/"):
            self._prefix = tf.placeholder(tf.string, [], name="prefix")
            in_order = [
                Assigned(variable, piece, taken.source, tf.as_dtype(taken.dtype))
                for variable, piece, taken in found
                if taken.rows is None and taken.value is None
            ]
            self.restoring = Restore(self._prefix, in_order, block_bytes)
            self._assign_by_keys = tf.group(
                *(
                    self._assign_by_key(variable, piece, taken, np.load(run_dir / taken.rows))
                    for variable, piece, taken in found
                    if taken.rows is not None
                )
            )

            self._files: dict[tf.Tensor, Path] = {}
            self._assign_values = self._values_of_files(found)

    def run(self, session: tf.Session) -> None:
        """Assigns the variables. Raises CheckpointError if the checkpoint's sidecar is damaged, and tf.errors.OpError
        if the checkpoint cannot be read."""
        prefix = Path(self._start.prefix)
        with literal(prefix) as path:
            self.restoring.run(session, path, block_rows_of(prefix))
            session.run(self._assign_by_keys, {self._prefix: path})
        session.run(self._assign_values, {fed: np.load(file) for fed, file in self._files.items()})

    def _values_of_files(self, found: Iterable[tuple[LogicalVariable, Piece, Taken]]) -> list[tf.Operation]:
        """Returns ops that assign values in files, which are fed."""
        assigned = []
        for variable, piece, taken in found:
            if taken.value is not None:
                value = tf.placeholder(variable.dtype, variable.shape)
                self._files[value] = self._run_dir / taken.value
                assigned.append(piece.assign(value[piece.where]))
        return assigned

    def _assign_by_key(self, variable: LogicalVariable, piece: Piece, taken: Taken, rows: np.ndarray) -> tf.Operation:
        """Assigns the rows that `rows` names. The others keep their initial values."""
        (source,) = tf.raw_ops.RestoreV2(
            prefix=self._prefix, tensor_names=[taken.source], shape_and_slices=[""], dtypes=[tf.as_dtype(taken.dtype)]
        )
        own = rows[piece.where[0]]
        given = tf.cast(tf.gather(source, np.maximum(own, 0)), variable.dtype)
        values = given[(slice(None), *piece.where[1:])]
        return piece.assign_rows(tf.ensure_shape(values, piece.shape), tf.constant(own != FRESH))
