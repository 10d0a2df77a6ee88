"""The noun that rewriting makes."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow.compat.v1 as tf

CLOSED = -1  # the next step, where there is none


def index(offset: tuple[int, ...], shape: tuple[int, ...], step: int) -> tuple[slice, ...]:
    """The index of `shape` values from `offset` (one a dimension) on, of the first dimension each `step`-th."""
    steps = (step, *(1 for _ in shape[1:]))[: len(shape)]
    return tuple(
        slice(start, start + size * every, every) for start, size, every in zip(offset, shape, steps, strict=True)
    )


@dataclass(frozen=True)
class PieceRead:
    """A read of a piece: `values` are those of the moment at which `read` runs. They may arrive later."""

    read: tf.Operation
    values: tf.Tensor


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a logical variable: `shape` values from `offset` (one a dimension) on, of the first dimension each
    `step`-th, in the resource `handle`.

    `is_shared`: all ranks have this one, which is on a server; otherwise each rank has its own.
    """

    handle: tf.Tensor
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    is_shared: bool = False
    step: int = 1

    @property
    def where(self) -> tuple[slice, ...]:
        """The part as an index into the whole variable."""
        return index(self.offset, self.shape, self.step)

    @property
    def needs_all_ranks(self) -> bool:
        """Whether a read is a collective, which gives the chief the values."""
        return False

    def read(self) -> PieceRead:
        """Makes a read of it, beside the variable."""
        with tf.device(self.handle.op.device or None):
            values = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.handle.op.get_attr("dtype"))
        return PieceRead(values.op, values)

    def assign(self, values: tf.Tensor) -> tf.Operation:
        """An op that gives it values of its shape; only the chief runs that of a shared piece."""
        with tf.device(self.handle.op.device or None):
            return tf.raw_ops.AssignVariableOp(resource=self.handle, value=tf.ensure_shape(values, self.shape))


@dataclass(frozen=True)
class LogicalVariable:
    """A variable as the single-device graph and checkpoints know it."""

    name: str
    shape: tuple[int, ...]
    dtype: tf.DType
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Admission:
    """How a worker takes part in steps that are complete without some of them (rewrite/routes/ps/admission.py).

    `next_step` (int64) is run after a step: how many steps are done, once that is more than when this worker began its
    one; CLOSED after `close`, after which nobody is admitted. `admitted` (bool), fetched with a step, says whether the
    step contains this worker's gradients. `steps_done` (int64) reads the number on server 0.
    """

    next_step: tf.Tensor
    admitted: tf.Tensor
    close: tf.Operation
    steps_done: tf.Tensor


@dataclass(frozen=True)
class Carried:
    """What is fetched as `fetched`, the next step is fed as `fed`."""

    fed: tf.Tensor
    fetched: tf.Tensor


@dataclass(frozen=True)
class Behind:
    """What a step leaves to be applied while the next one runs.

    `carried` is fetched in the step, and fed to `apply`. `alone` (int32) is fed 0 in a step that another follows, whose
    preparation then runs `tell` during this one; otherwise the step leaves nothing. `give_up` lets a step fail that
    waits for `tell`.
    """

    carried: tuple[Carried, ...]
    apply: tf.Operation
    alone: tf.Tensor
    tell: tf.Operation
    give_up: tf.Operation


@dataclass(frozen=True)
class Ahead:
    """What is prepared for a step before it runs: its draws, and rows that no step before it changes any more.

    `features` are fed the step's batch, by feature. `first` prepares the first step. Any other is prepared while the one
    before it runs, fed what this one was fed: `asked` is found first, and with it `route`; then, fed `route` alone, the
    `rows`. `behind` is None if every row's gradient is applied in its own step.
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

    Replica number k of this worker has the single-device graph's names behind `prefixes[k]`, the first no prefix; it is
    fed through `features[k]`. `loss` is the mean over them. `metric_sums` are what a step's batches add to the sums of
    the single-device graph's `metrics`, over these replicas; `validation_metric_sums` likewise for a validation, of the
    first replica. A validation is fed through `validation_features`; its batches may have any size if
    `validates_any_size`, otherwise that of training. `stands_for` has, by the name of a tensor that only makes
    sense on one device (a read of a variable that is on servers), the tensor to fetch in its place.
    `initialize` runs first on the chief; `release` tells the others that the servers' variables are there (an op on the
    chief), `wait` waits for that (an op on the others); then `agree` runs on all ranks at once and gives everybody the
    chief's values of replicated variables. `open_inputs` is the part of `initialize` that a new session on variables
    that are there already has to run: tables and iterators. `open_late_inputs` runs after either of them: iterators
    that look something up in a table. `train_op` is one synchronous step. `sent_bytes` is
    the bytes that the step which fetches it handed to collectives and servers and got back from servers (float64): for
    each variable of the plan, in its order, and last those that were for none of them alone.
    `applied` says whether the step changed the variables (scalar, bool); None where every step does. `device` is
    where this worker's own ops run.
    Where a read of variables needs all ranks, ranks vote on it: `vote` (scalar, float32, 0 if not fed) is this rank's,
    with a step or without one, and `votes` the sum over ranks.
    `variables` are those of its first replica; `copies` those that its other replicas keep each for itself, which are
    restored as the first one's are, and never saved.

    The rest is for asynchronous training, None otherwise. `mutex` is the lock that a push holds, and whoever reads all
    variables at one moment; `staleness` (int64, one a replica) says how many pushes of others the step's own came after
    its pull; `may_start` is run before a step and returns when the bound on staleness allows it; `leave` is run after
    the last step and returns when all workers have come to theirs. `mutex` and `leave` are also there with backup
    workers, and only then `admission`.
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
