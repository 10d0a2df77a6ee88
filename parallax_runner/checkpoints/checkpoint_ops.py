"""The ops that read and restore a distributed graph's variables under logical names and in full shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import block_rows_of, read_sidecar
from parallax_runner.checkpoints.own_rows import OwnRows
from parallax_runner.checkpoints.restore import Assigned, Restore
from parallax_runner.checkpoints.row_blocks import BLOCK_BYTES
from parallax_runner.checkpoints.slices import Slice
from parallax_runner.checkpoints.warm_start import KEY, Stored
from parallax_runner.errors import CheckpointError, Setting, reason_in
from parallax_runner.files.literal_path import literal
from parallax_runner.graph.single_device_graph import Variable
from parallax_runner.rewrite.distributed_graph import Admission, DistributedGraph, LogicalVariable, Piece

UNKNOWN_STEP = -1  # means: use the chief's own step count


class CheckpointOps:
    """The ops that one rank's graph needs to save and restore checkpoints. Create this object before the session.

    If variables are spread over the ranks, each rank has `own_rows`, and all ranks save together (joint_save.py).
    Otherwise, only the chief saves. Large variables are written and read in blocks of about `block_bytes` bytes. If a
    read needs all ranks (`is_collective`), all ranks must call `read`,
    `read_kept` and `snapshot` together, and the chief gets the values.
    """

    def __init__(self, distributed: DistributedGraph, block_bytes: int = BLOCK_BYTES) -> None:
        self.block_bytes = block_bytes
        self.rank, self.is_chief = distributed.rank, distributed.rank == 0
        pairs = [(variable, piece) for variable in distributed.variables for piece in variable.pieces]
        self.slices = tuple(
            Slice(variable.name, variable.dtype, variable.shape, piece.offset, piece.shape, piece.step)
            for variable, piece in pairs
        )
        self.is_collective = any(piece.needs_all_ranks for _, piece in pairs)
        parts = [(part, piece) for part, (_, piece) in zip(self.slices, pairs, strict=True)]
        with distributed.graph.as_default(), tf.device(distributed.device), tf.name_scope("checkpoint/"):
            prefix = tf.placeholder(tf.string, [], name="prefix")
            self.own_rows = OwnRows.of(parts)
            read = [(part, piece) for part, piece in parts if self.is_chief or piece.needs_all_ranks]
            if read:
                self._add_reads(read, distributed)
                self._add_kept(read)
            assigned = [Assigned.by_name(variable, piece) for variable, piece in assigned_pieces(distributed)]
            self.restoring = Restore(prefix, assigned, block_bytes)

    def restore(self, session: tf.Session, prefix: Path) -> None:
        """Gives all variables that this rank assigns the values of the checkpoint `prefix`. Raises CheckpointError if
        its sidecar is damaged, and tf.errors.OpError if values cannot be read. The sidecar may be missing."""
        with literal(prefix) as path:
            self.restoring.run(session, path, block_rows_of(prefix))

    def read(self, session: tf.Session) -> list[np.ndarray]:
        """Reads the values of `slices` as they are when `wait_until_read` returns in another thread.

        After that moment, steps may run while values are still being sent: either the values are copies, or each op
        that writes a variable copies it first.
        """
        return self.read_with_step(session)[0]

    def read_with_step(self, session: tf.Session) -> tuple[list[np.ndarray], int | None]:
        """Returns the result of `read`, and the number of steps that led to the values.

        The number is None if steps wait for the chief.
        """
        values, step, *_ = session.run([self.values, self.step, self.tell_read, self.release_mutex])
        return values, _step_or_none(step)

    def warm_up(self, session: tf.Session) -> None:
        """Runs the ops for a save once, as far as no other rank has to take part."""
        if self.own_rows is not None:
            self.own_rows.read(session, {})
        if not self.is_collective:
            self.read(session)
            self.wait_until_read(session)

    def read_kept(self, session: tf.Session, slices: Sequence[Slice] | None = None) -> list[np.ndarray]:
        """Reads the values of `kept_slices`, which are not spread over the ranks, or of some of them, on the chief. No
        step may run."""
        of_slices = dict(zip(self.kept_slices, self._kept_values, strict=True))
        values: list[np.ndarray] = session.run([of_slices[part] for part in slices or self.kept_slices])
        return values

    def wait_until_read(self, session: tf.Session) -> int | None:
        """Waits until a `read` in another thread has read all variables, or until `give_up` is called.

        Returns the number of steps, as in `read_with_step`.
        """
        return _step_or_none(session.run(self.wait))

    def give_up(self, session: tf.Session) -> None:
        """Makes `wait_until_read` return after a failed `read`."""
        session.run(self.tell_failed)

    def snapshot(self, session: tf.Session) -> dict[str, np.ndarray]:
        """Returns all saved variables under logical names and in full shapes. Returns an empty dict on ranks other than
        the chief."""
        found: dict[str, np.ndarray] = {}
        values = session.run([self.values, self.release_mutex])[0] if self.is_chief or self.is_collective else []
        for part, value in zip(self.slices, values, strict=True) if self.is_chief else ():
            whole = found.setdefault(part.name, np.empty(part.full_shape, value.dtype))
            whole[part.where] = value
        return found

    def _add_kept(self, parts: list[tuple[Slice, Piece]]) -> None:
        """Selects the values that are not spread over the ranks."""
        kept = [number for number, (_, piece) in enumerate(parts) if piece.ranks is None]
        self.kept_slices = tuple(parts[number][0] for number in kept)
        self._kept_values = [self.values[number] for number in kept]

    def _add_reads(self, parts: list[tuple[Slice, Piece]], distributed: DistributedGraph) -> None:
        """Adds the read ops. If there is a mutex (routes/ps/mutex.py), the mutex blocks updates from the first
        to the last read."""
        held, mutex = None, distributed.mutex
        if mutex is not None:
            with tf.device(mutex.device):
                held = tf.raw_ops.MutexLock(mutex=mutex)
        with tf.control_dependencies([] if held is None else [held.op]):
            found = [piece.read() for _, piece in parts]
            # If there is a mutex, the step count is read on the mutex's server, since this process may be busy with a
            # step.
            with tf.device(None if held is None else held.device):
                self.step = _read_step(distributed.admission)
        self.values = [each.values for each in found]
        reads = [*(each.read for each in found), self.step.op]
        with tf.control_dependencies(reads):
            self.release_mutex = tf.no_op()
            if held is not None:
                with tf.device(held.device):
                    self.release_mutex = tf.raw_ops.ConsumeMutexLock(mutex_lock=held)
        # A queue signals when all variables have been read. `read` itself returns later, when the values from servers
        # have arrived.
        queue = tf.FIFOQueue(capacity=2, dtypes=[tf.int64], shapes=[[]], name="read")
        with tf.control_dependencies(reads):
            self.tell_read = queue.enqueue(self.step)
        self.tell_failed = queue.enqueue(tf.constant(UNKNOWN_STEP, tf.int64))
        self.wait = queue.dequeue()


def assigned_pieces(distributed: DistributedGraph) -> Iterator[tuple[LogicalVariable, Piece]]:
    """Yields the pieces that a rank assigns when variables get new values, each with its variable.

    A rank assigns its own pieces and its copies of other pieces. Only the chief assigns pieces on servers.
    """
    is_chief = distributed.rank == 0
    for variable in distributed.variables:
        for piece in variable.pieces:
            if is_chief or not piece.is_shared:
                yield variable, piece
    for copy in distributed.copies:
        for piece in copy.pieces:
            yield copy, piece


AFRESH = "set ckpt.resume=never to start afresh"
ANOTHER = "set ckpt.resume to a checkpoint of this model"


def check_fits(prefix: Path, variables: Iterable[Variable], *, numbering: str = "", remedy: str = AFRESH) -> None:
    """Raises CheckpointError if the checkpoint does not fit the variables.

    A checkpoint does not fit if it is unreadable, lacks a saved variable, or has a saved variable with another shape or
    dtype. It also does not fit if its variables were trained on data with a different numbering, provided that both
    numberings are known. `remedy` ends the messages.
    """
    then = remedy[0].upper() + remedy[1:]
    if numbering and read_sidecar(prefix).numbering not in ("", numbering):
        raise CheckpointError(
            f"checkpoint {prefix} comes from a run with a different vocabulary, so the rows of its tables no longer "
            f"match the words. Restore the training data and the data settings of that run, or {remedy}"
        )
    try:
        with literal(prefix) as path:
            reader = tf.train.load_checkpoint(path)
    except tf.errors.OpError as error:
        raise CheckpointError(f"checkpoint {prefix} cannot be read: {reason_in(error.message)}") from error
    shapes: Mapping[str, list[int]] = reader.get_variable_to_shape_map()
    dtypes: Mapping[str, tf.DType] = reader.get_variable_to_dtype_map()
    for variable in variables:
        if not variable.saved:
            continue
        if variable.full_name not in shapes:
            raise CheckpointError(
                f"checkpoint {prefix} has no variable «{variable.full_name}»: the checkpoint belongs to another "
                f"model or optimizer. {then}"
            )
        if tuple(shapes[variable.full_name]) != variable.full_shape:
            raise CheckpointError(
                f"checkpoint {prefix}: variable «{variable.full_name}» has shape {shapes[variable.full_name]}, but "
                f"shape {list(variable.full_shape)} in the model. {then}"
            )
        if dtypes[variable.full_name] != tf.as_dtype(variable.dtype):
            raise CheckpointError(
                f"checkpoint {prefix}: variable «{variable.full_name}» has dtype {dtypes[variable.full_name].name}, "
                f"but dtype {variable.dtype} in the model. {then}"
            )


def stored_in(prefix: Path, *, key: str = KEY) -> dict[str, Stored]:
    """Returns the tensors of numbers in a checkpoint, by name. `key` is the setting that names it. Raises
    CheckpointError if it cannot be read."""
    try:
        with literal(prefix) as path:
            reader = tf.train.load_checkpoint(path)
    except (tf.errors.OpError, ValueError) as error:
        reason = error.message if isinstance(error, tf.errors.OpError) else str(error)
        raise CheckpointError(f"this checkpoint cannot be read: {reason_in(reason)}").about(
            Setting(key, str(prefix))
        ) from error
    dtypes: Mapping[str, tf.DType] = reader.get_variable_to_dtype_map()
    return {
        name: Stored(tuple(shape), dtypes[name].name)
        for name, shape in reader.get_variable_to_shape_map().items()
        if dtypes[name].is_floating or dtypes[name].is_integer or dtypes[name].is_bool
    }


def value_in(prefix: Path, name: str) -> np.ndarray:
    """Returns a tensor of a checkpoint that `stored_in` can read."""
    with literal(prefix) as path:
        value: np.ndarray = tf.train.load_checkpoint(path).get_tensor(name)
    return value


def _read_step(admission: Admission | None) -> tf.Tensor:
    if admission is None:
        return tf.constant(UNKNOWN_STEP, tf.int64)
    handle = admission.steps_done.op.inputs[0]
    with tf.device(handle.device):
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64)


def _step_or_none(step: np.ndarray) -> int | None:
    return None if step == UNKNOWN_STEP else int(step)
