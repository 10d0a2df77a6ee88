"""The ops that read and restore a distributed graph's variables as one device would: logical names, full shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.files import read_sidecar
from parallax_runner.checkpoints.literal_path import literal
from parallax_runner.errors import CheckpointError, reason_in
from parallax_runner.graph.single_device_graph import Variable
from parallax_runner.rewrite.distributed_graph import Admission, DistributedGraph, LogicalVariable, Piece, index

UNKNOWN_STEP = -1  # the one that the chief counts itself


@dataclass(frozen=True)
class Slice:
    """Which part of which logical variable an array holds: `shape` values from `offset` (one a dimension) on, of the
    first dimension each `step`-th."""

    name: str
    dtype: tf.DType
    full_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    step: int = 1

    @property
    def where(self) -> tuple[slice, ...]:
        """The part as NumPy's index into the whole."""
        return index(self.offset, self.shape, self.step)


class CheckpointOps:
    """The ops that one rank's graph needs to save and restore; make it before the session.

    Only the chief saves. Where variables are spread over the ranks (`is_collective`) it reads them with the others'
    help: then `read` and `snapshot` are for all ranks to call, each time, and give the chief the values.
    """

    def __init__(self, distributed: DistributedGraph) -> None:
        with distributed.graph.as_default(), tf.device(distributed.device), tf.name_scope("checkpoint/"):
            self.prefix = tf.placeholder(tf.string, [], name="prefix")
            self.is_chief = distributed.rank == 0
            pairs = [(variable, piece) for variable in distributed.variables for piece in variable.pieces]
            self.slices = tuple(
                Slice(variable.name, variable.dtype, variable.shape, piece.offset, piece.shape, piece.step)
                for variable, piece in pairs
            )
            self.is_collective = any(piece.needs_all_ranks for _, piece in pairs)
            if self.is_chief or self.is_collective:
                read = [piece for _, piece in pairs if self.is_chief or piece.needs_all_ranks]
                self._add_reads(read, distributed)
            mine = [pair for pair in pairs if self.is_chief or not pair[1].is_shared]
            mine += [(copy, piece) for copy in distributed.copies for piece in copy.pieces]
            self.restore = tf.group(*self._restore(mine))

    def read(self, session: tf.Session) -> list[np.ndarray]:
        """The values behind `slices`, all of one moment: that at which `wait_until_read` returns in another thread.

        Steps may run from then on, while values still travel: what was read is a copy, or is copied by who writes.
        """
        return self.read_with_step(session)[0]

    def read_with_step(self, session: tf.Session) -> tuple[list[np.ndarray], int | None]:
        """What `read` returns, and of how many steps it is where steps do not wait for the chief; None otherwise."""
        values, step, *_ = session.run([self.values, self.step, self.tell_read, self.release_mutex])
        return values, _step_or_none(step)

    def wait_until_read(self, session: tf.Session) -> int | None:
        """Returns when a `read` in another thread has read all variables, or `give_up` was called; see
        `read_with_step` for what."""
        return _step_or_none(session.run(self.wait))

    def give_up(self, session: tf.Session) -> None:
        """Lets `wait_until_read` return after a `read` that failed."""
        session.run(self.tell_failed)

    def snapshot(self, session: tf.Session) -> dict[str, np.ndarray]:
        """All saved variables under logical names, in full shapes; nothing on other ranks than the chief."""
        found: dict[str, np.ndarray] = {}
        values = session.run([self.values, self.release_mutex])[0] if self.is_chief or self.is_collective else []
        for part, value in zip(self.slices, values, strict=True) if self.is_chief else ():
            whole = found.setdefault(part.name, np.empty(part.full_shape, value.dtype))
            whole[part.where] = value
        return found

    def _add_reads(self, pieces: list[Piece], distributed: DistributedGraph) -> None:
        """Where there is a mutex, nobody updates between the first read and the last (rewrite/routes/ps/mutex.py)."""
        held, mutex = None, distributed.mutex
        if mutex is not None:
            with tf.device(mutex.device):
                held = tf.raw_ops.MutexLock(mutex=mutex)
        with tf.control_dependencies([] if held is None else [held.op]):
            found = [piece.read() for piece in pieces]
            # On a server where there is a mutex: this process may be busy with a step.
            with tf.device(None if held is None else held.device):
                self.step = _read_step(distributed.admission)
        self.values = [each.values for each in found]
        reads = [*(each.read for each in found), self.step.op]
        with tf.control_dependencies(reads):
            self.release_mutex = tf.no_op()
            if held is not None:
                with tf.device(held.device):
                    self.release_mutex = tf.raw_ops.ConsumeMutexLock(mutex_lock=held)
        # A queue, and not the end of `read` itself: values of servers arrive long after they were read there.
        queue = tf.FIFOQueue(capacity=2, dtypes=[tf.int64], shapes=[[]], name="read")
        with tf.control_dependencies(reads):
            self.tell_read = queue.enqueue(self.step)
        self.tell_failed = queue.enqueue(tf.constant(UNKNOWN_STEP, tf.int64))
        self.wait = queue.dequeue()

    def _restore(self, pairs: list[tuple[LogicalVariable, Piece]]) -> list[tf.Operation]:
        if not pairs:
            return []
        keys = [(variable.name, _spec_to_read(variable, piece), variable.dtype) for variable, piece in pairs]
        names, specs, dtypes = zip(*dict.fromkeys(keys), strict=True)
        values = tf.raw_ops.RestoreV2(prefix=self.prefix, tensor_names=names, shape_and_slices=specs, dtypes=dtypes)
        by_key = dict(zip(dict.fromkeys(keys), values, strict=True))
        ops = []
        for (variable, piece), key in zip(pairs, keys, strict=True):
            value = by_key[key]
            if piece.step > 1:  # taken here, and not on the server, which is to get its own rows only
                value = tf.ensure_shape(value, variable.shape)[piece.where]
            ops.append(piece.assign(value))
        return ops


def slice_spec(shape: tuple[int, ...], piece: Piece | Slice) -> str:
    """TensorFlow's description of a range of a tensor: «40000 128 0,10000:0,128»; empty for all of it."""
    if piece.shape == shape:
        return ""
    ranges = ":".join(f"{offset},{length}" for offset, length in zip(piece.offset, piece.shape, strict=True))
    return " ".join(map(str, shape)) + " " + ranges


def _spec_to_read(variable: LogicalVariable, piece: Piece) -> str:
    """What is read for a piece: all, where rows are not next to each other."""
    return slice_spec(variable.shape, piece) if piece.step == 1 else ""


def check_fits(prefix: Path, variables: Iterable[Variable], *, numbering: str = "") -> None:
    """Raises CheckpointError where the checkpoint is unreadable, lacks a saved variable or has it in another shape, and
    where it was trained on data with another numbering, as far as that is known."""
    if numbering and read_sidecar(prefix).numbering not in ("", numbering):
        raise CheckpointError(
            f"checkpoint {prefix} was trained with another vocabulary: the text, or how it is read, has changed since, "
            "and rows of its tables are other words now; bring the text back, or start afresh with ckpt.resume=never"
        )
    try:
        with literal(prefix) as path:
            shapes: Mapping[str, list[int]] = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    except tf.errors.OpError as error:
        raise CheckpointError(f"checkpoint {prefix} cannot be read: {reason_in(error.message)}") from error
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


def _read_step(admission: Admission | None) -> tf.Tensor:
    if admission is None:
        return tf.constant(UNKNOWN_STEP, tf.int64)
    handle = admission.steps_done.op.inputs[0]
    with tf.device(handle.device):
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64)


def _step_or_none(step: np.ndarray) -> int | None:
    return None if step == UNKNOWN_STEP else int(step)
