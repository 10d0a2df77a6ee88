"""Saves and restores a distributed graph's variables as one device would: logical names, full shapes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.errors import CheckpointError
from parallax_runner.graph.single_device_graph import Variable
from parallax_runner.rewrite.distributed_graph import DistributedGraph, LogicalVariable, Piece
from parallax_runner.train import checkpoint_files
from parallax_runner.train.checkpoint_files import Sidecar


class CheckpointOps:
    """The ops that one rank's graph needs to save and restore; make it before the session."""

    def __init__(self, distributed: DistributedGraph) -> None:
        with distributed.graph.as_default(), tf.device(distributed.device), tf.name_scope("checkpoint/"):
            self.prefix = tf.placeholder(tf.string, [], name="prefix")
            pairs = [(variable, piece) for variable in distributed.variables for piece in variable.pieces]
            self.save = self._save(pairs)
            mine = [pair for pair in pairs if distributed.rank == 0 or not pair[1].on_server]
            self.restore = tf.group(*self._restore(mine))

    def snapshot(self, session: tf.Session, prefix: Path) -> dict[str, np.ndarray]:
        """All saved variables under logical names, through files at `prefix`, whose folder is then deleted."""
        prefix.parent.mkdir(parents=True, exist_ok=True)
        session.run(self.save, {self.prefix: str(prefix)})
        reader = tf.train.load_checkpoint(str(prefix))
        values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
        for file in prefix.parent.glob(f"{prefix.name}.*"):
            file.unlink()
        prefix.parent.rmdir()
        return values

    def _save(self, pairs: list[tuple[LogicalVariable, Piece]]) -> tf.Operation:
        return tf.raw_ops.SaveV2(
            prefix=self.prefix,
            tensor_names=[variable.name for variable, _ in pairs],
            shape_and_slices=[slice_spec(variable.shape, piece) for variable, piece in pairs],
            tensors=[_read(variable, piece) for variable, piece in pairs],
        )

    def _restore(self, pairs: list[tuple[LogicalVariable, Piece]]) -> list[tf.Operation]:
        if not pairs:
            return []
        values = tf.raw_ops.RestoreV2(
            prefix=self.prefix,
            tensor_names=[variable.name for variable, _ in pairs],
            shape_and_slices=[slice_spec(variable.shape, piece) for variable, piece in pairs],
            dtypes=[variable.dtype for variable, _ in pairs],
        )
        ops = []
        for (_, piece), value in zip(pairs, values, strict=True):
            with tf.device(piece.handle.op.device or None):
                ops.append(
                    tf.raw_ops.AssignVariableOp(resource=piece.handle, value=tf.ensure_shape(value, piece.shape))
                )
        return ops


@dataclass
class CheckpointSaver:
    """Writes checkpoints of a run, by steps, by seconds and at the end; the chief's."""

    ops: CheckpointOps
    folder: Path
    save_steps: int | None
    save_secs: float | None
    keep: int
    seed: int
    fingerprint: str
    mlflow_run_id: str | None
    last_step: int = -1
    last_time_secs: float = 0.0
    last_prefix: Path | None = None

    def start(self, step: int) -> None:
        """Begins to count from `step`."""
        self.last_step, self.last_time_secs = step, time.monotonic()

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is to be written after `step` steps."""
        by_steps = self.save_steps is not None and step % self.save_steps == 0
        by_secs = self.save_secs is not None and time.monotonic() - self.last_time_secs >= self.save_secs
        return step != self.last_step and (by_steps or by_secs)

    def save(self, session: tf.Session, *, step: int, examples: int) -> Path:
        """Writes beside, then moves into place; returns the prefix."""
        partial = self.folder / f".partial-{step}" / checkpoint_files.STEM
        partial.parent.mkdir(parents=True, exist_ok=True)
        session.run(self.ops.save, {self.ops.prefix: str(partial)})
        sidecar = Sidecar(
            step=step,
            examples=examples,
            seed=self.seed,
            fingerprint=self.fingerprint,
            mlflow_run_id=self.mlflow_run_id,
        )
        prefix = checkpoint_files.publish(partial, self.folder, sidecar)
        checkpoint_files.forget_old(self.folder, self.keep)
        # So that tf.train.latest_checkpoint and load_checkpoint find the newest in the folder.
        kept = [path.name for path in checkpoint_files.list_checkpoints(self.folder)]
        tf.train.update_checkpoint_state(str(self.folder), prefix.name, all_model_checkpoint_paths=kept)
        self.start(step)
        self.last_prefix = prefix
        return prefix


def slice_spec(shape: tuple[int, ...], piece: Piece) -> str:
    """TensorFlow's description of a piece of a tensor: «40000 128 0,10000:0,128»; empty for all of it."""
    if piece.shape == shape:
        return ""
    ranges = ":".join(f"{offset},{length}" for offset, length in zip(piece.offset, piece.shape, strict=True))
    return " ".join(map(str, shape)) + " " + ranges


def check_fits(prefix: Path, variables: Iterable[Variable]) -> None:
    """Raises CheckpointError where the checkpoint is unreadable, lacks a saved variable, or has it in another shape."""
    try:
        shapes: Mapping[str, list[int]] = tf.train.load_checkpoint(str(prefix)).get_variable_to_shape_map()
    except tf.errors.OpError as error:
        raise CheckpointError(f"checkpoint {prefix} cannot be read: {error.message}") from error
    for variable in variables:
        if not variable.saved:
            continue
        if variable.full_name not in shapes:
            raise CheckpointError(
                f"checkpoint {prefix} has no «{variable.full_name}»: it was written by another model or optimizer; "
                "ckpt.resume=never starts afresh"
            )
        if tuple(shapes[variable.full_name]) != variable.full_shape:
            raise CheckpointError(
                f"checkpoint {prefix} has «{variable.full_name}» in shape {shapes[variable.full_name]}, the model in "
                f"{list(variable.full_shape)}: sizes have changed since; ckpt.resume=never starts afresh"
            )


def _read(variable: LogicalVariable, piece: Piece) -> tf.Tensor:
    with tf.device(piece.handle.op.device or None):
        return tf.raw_ops.ReadVariableOp(resource=piece.handle, dtype=variable.dtype)
