"""The result of rewriting: one worker's graph."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow.compat.v1 as tf

CLOSED = -1  # the value of `next_step` when no step is left


def index(offset: tuple[int, ...], shape: tuple[int, ...], step: int) -> tuple[slice, ...]:
    """Returns the index of `shape` values that start at `offset` (one entry per dimension).

    The index takes every `step`-th value of the first dimension.
    """
    steps = (step, *(1 for _ in shape[1:]))[: len(shape)]
    return tuple(
        slice(start, start + size * every, every) for start, size, every in zip(offset, shape, steps, strict=True)
    )


@dataclass(frozen=True)
class PieceRead:
    """A read of a piece. `values` are the values when `read` runs, and may arrive later."""

    read: tf.Operation
    values: tf.Tensor


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a logical variable, stored in the resource `handle`.

    It has `shape` values that start at `offset` (one entry per dimension), and takes every `step`-th value of the first
    dimension. With `is_shared`, the piece is on a server and all ranks share it. Otherwise each rank has its own.
    """

    handle: tf.Tensor
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    is_shared: bool = False
    step: int = 1

    @property
    def where(self) -> tuple[slice, ...]:
        """The index of the piece in the whole variable."""
        return index(self.offset, self.shape, self.step)

    @property
    def needs_all_ranks(self) -> bool:
        """Whether a read is a collective that gives the chief the values."""
        return False

    def read(self) -> PieceRead:
        """Makes a read of the piece, on the variable's device."""
        with tf.device(self.handle.op.device or None):
            values = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.handle.op.get_attr("dtype"))
        return PieceRead(values.op, values)

    def assign(self, values: tf.Tensor) -> tf.Operation:
        """Returns an op that assigns `values`, of the piece's shape. Only the chief runs the op of a shared piece."""
        with tf.device(self.handle.op.device or None):
            return tf.raw_ops.AssignVariableOp(resource=self.handle, value=tf.ensure_shape(values, self.shape))


@dataclass(frozen=True)
class LogicalVariable:
    """A variable as the single-device graph and checkpoints name it."""

    name: str
    shape: tuple[int, ...]
    dtype: tf.DType
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Admission:
    """How a worker takes part in steps that can complete without some workers (rewrite/routes/ps/admission.py).

    `next_step` (int64) runs after a step. It waits until more steps are done than when this worker began its step, and
    gives their number. After `close` it gives CLOSED, and no worker is admitted any more. `admitted` (bool), fetched
    with a step, tells whether the step contains this worker's gradients. `steps_done` (int64) reads the number of steps
    on server 0.
    """

    next_step: tf.Tensor
    admitted: tf.Tensor
    close: tf.Operation
    steps_done: tf.Tensor


@dataclass(frozen=True)
class Carried:
    """A value that is carried to the next step: fetched as `fetched`, and fed to the next step as `fed`."""

    fed: tf.Tensor
    fetched: tf.Tensor


@dataclass(frozen=True)
class Behind:
    """The part of a step's update that is applied while the next step runs.

    `carried` is fetched with the step and fed to `apply`. If another step follows, `alone` (int32) is fed 0, and the
    preparation of that step runs `tell`. Otherwise the step applies its whole update. `give_up` makes a step fail that
    waits for `tell`.
    """

    carried: tuple[Carried, ...]
    apply: tf.Operation
    alone: tf.Tensor
    tell: tf.Operation
    give_up: tf.Operation


@dataclass(frozen=True)
class Ahead:
    """The preparation of a step before it runs: its random draws, and rows that no earlier step still changes.

    `features` are the placeholders for the step's batch, by feature. `first` prepares the first step. Every other step
    is prepared while the step before it runs: `asked` and `rows` are fetched, and the same values are fed as to that
    step. `rows` can also be fetched in a second run that is only fed `route`. `behind` is None if every step applies
    its whole update.
    """

    features: dict[str, tf.Tensor]
    first: tuple[Carried, ...]
    asked: tuple[Carried, ...]
    route: tuple[tf.Tensor, ...]
    rows: tuple[Carried, ...]
    behind: Behind | None = None


@dataclass(frozen=True)
class DistributedGraph:
    """One worker's graph, with all of its replicas.

    The op names of replica k have the prefix `prefixes[k]`, which is empty for the first replica. Replica k is fed
    through `features[k]`, and `loss` is the mean over the replicas. `metric_sums` are what the batches of a step add to
    the sums of the single-device graph's `metrics`, over these replicas. `validation_metric_sums` are the same for a
    validation, which only the first replica runs. A validation is fed through `validation_features`. Its batches may
    have any size if `validates_any_size`, otherwise the size of training batches. `stands_for` maps the name of a
    tensor that only makes sense on one device (a read of a variable that is on servers) to the tensor to fetch instead.

    `initialize` runs first on the chief. Then `release`, an op on the chief, tells the other workers that the variables
    on servers exist; `wait`, an op on the others, waits for that. Then `agree` runs on all ranks at once and gives
    every rank the chief's values of replicated variables. A new session on existing variables runs only `open_inputs`,
    the part of `initialize` that opens tables and iterators. `open_late_inputs` runs after `initialize` or
    `open_inputs`, and opens iterators that look something up in a table.

    `train_op` is one synchronous step. `sent_bytes` (float64), fetched with a step, counts the bytes that the step
    sends to collectives and servers and gets back from servers. It has one entry for each variable of the plan, in the
    plan's order, and a last entry for bytes that belong to no single variable. `applied` (scalar, bool) tells whether
    the step changed the variables; None if every step does. `device` is where this worker's own ops run.

    If a read of variables needs all ranks, the ranks vote on it. `vote` (scalar, float32, 0 if not fed) is this rank's
    vote, with or without a step, and `votes` is the sum over ranks. `variables` are the variables of the first replica.
    `copies` are the variables of which each other replica keeps its own copy: they are restored like those of the first
    replica, but never saved.

    The other fields are for asynchronous training and are None otherwise. `mutex` is the lock that is held by a push,
    and by a read of all variables at one moment. `staleness` (int64, one entry per replica) counts the pushes of other
    replicas between the pull and the push of the step. `may_start` runs before a step and returns when the bound on
    staleness allows the step. `leave` runs after the last step and returns when all workers have finished theirs.
    `mutex` and `leave` also exist with backup workers. `admission` exists only with backup workers.
    """

    graph: tf.Graph
    prefixes: tuple[str, ...]
    features: tuple[dict[str, tf.Tensor], ...]
    validation_features: dict[str, tf.Tensor]
    validates_any_size: bool
    stands_for: dict[str, tf.Tensor]
    loss: tf.Tensor
    train_op: tf.Operation
    validation_loss: tf.Tensor | None
    metric_sums: tuple[tf.Tensor, ...]
    validation_metric_sums: tuple[tf.Tensor, ...]
    initialize: tf.Operation
    open_inputs: tf.Operation
    open_late_inputs: tf.Operation
    release: tf.Operation
    wait: tf.Operation
    agree: tf.Operation
    sent_bytes: tf.Tensor
    applied: tf.Tensor | None
    variables: tuple[LogicalVariable, ...]
    copies: tuple[LogicalVariable, ...]
    rank: int
    device: str
    vote: tf.Tensor | None = None
    votes: tf.Tensor | None = None
    ahead: Ahead | None = None
    mutex: tf.Tensor | None = None
    staleness: tf.Tensor | None = None
    may_start: tf.Operation | None = None
    leave: tf.Operation | None = None
    admission: Admission | None = None
