"""The result of rewriting: one worker's graph."""

from __future__ import annotations

from dataclasses import dataclass, field

import tensorflow.compat.v1 as tf

CLOSED = -1  # the value of `next_step` when no steps remain


def index(offset: tuple[int, ...], shape: tuple[int, ...], step: int) -> tuple[slice, ...]:
    """Returns the index of a part with the shape `shape` that starts at `offset` (one entry per dimension).

    The index selects every `step`-th value along the first dimension.
    """
    steps = (step, *(1 for _ in shape[1:]))[: len(shape)]
    return tuple(
        slice(start, start + size * every, every) for start, size, every in zip(offset, shape, steps, strict=True)
    )


@dataclass(frozen=True)
class PieceRead:
    """A read of a piece. `values` contains the values that the piece has when `read` runs. They may become available
    only after `read` has finished."""

    read: tf.Operation
    values: tf.Tensor


@dataclass(frozen=True)
class StoredRows:
    """The rows of a logical variable that a resource contains: `count` rows, every `step`-th row from row `first`."""

    first: int
    count: int
    step: int

    def places(self, begin: int, end: int) -> range:
        """Returns the positions in the resource of those rows that are at least `begin` and less than `end`."""
        return range(self._rows_before(begin), self._rows_before(end))

    def row_at(self, place: int) -> int:
        """Returns the row at a position in the resource."""
        return self.first + place * self.step

    def _rows_before(self, row: int) -> int:
        return min(self.count, len(range(self.first, row, self.step)))


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a logical variable, stored in the resource `handle`.

    The piece has the shape `shape` and starts at `offset` (one entry per dimension). It contains every `step`-th value
    along the first dimension. If `is_shared`, the piece is on a server and all ranks share it. Otherwise, each rank has
    its own piece.
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
    def stored(self) -> StoredRows:
        """The rows of the variable that `handle` contains. The variable must not be a scalar."""
        return StoredRows(self.offset[0], self.shape[0], self.step)

    @property
    def ranks(self) -> int | None:
        """The number of ranks if row i of the piece is on rank i mod ranks. Each rank then has its own rows in
        `handle`. None if the handle contains the whole piece."""
        return None

    @property
    def needs_all_ranks(self) -> bool:
        """Whether a read is a collective that sends the values to the chief."""
        return False

    def read(self) -> PieceRead:
        """Creates an op that reads the piece on the variable's device."""
        with tf.device(self.handle.op.device or None):
            values = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.handle.op.get_attr("dtype"))
        return PieceRead(values.op, values)

    def assign(self, values: tf.Tensor) -> tf.Operation:
        """Returns an op that assigns `values`, which must have the piece's shape. For a shared piece, only the chief
        runs the op."""
        with tf.device(self.handle.op.device or None):
            return tf.raw_ops.AssignVariableOp(resource=self.handle, value=tf.ensure_shape(values, self.shape))

    def read_at(self, places: tf.Tensor) -> tf.Tensor:
        """Returns a copy of the rows at the positions `places` (int64 [n]) in the resource. No other row is copied."""
        with tf.device(self.handle.op.device or None):
            return tf.raw_ops.ResourceGather(
                resource=self.handle, indices=places, dtype=self.handle.op.get_attr("dtype")
            )

    def assign_at(self, places: tf.Tensor, values: tf.Tensor) -> tf.Operation:
        """Returns an op that assigns the rows at the positions `places` (int64 [n]) in the resource. The other rows
        keep their values."""
        with tf.device(self.handle.op.device or None):
            return tf.raw_ops.ResourceScatterUpdate(resource=self.handle, indices=places, updates=values)

    def assign_rows(self, values: tf.Tensor, is_taken: tf.Tensor) -> tf.Operation:
        """Returns an op like `assign` for the rows where `is_taken` (bool [rows]) is true. The other rows keep their
        values."""
        return self._assign_own_rows(tf.ensure_shape(values, self.shape), is_taken)

    def _assign_own_rows(self, values: tf.Tensor, is_taken: tf.Tensor) -> tf.Operation:
        """Assigns rows of the resource, which has the shape of `values`."""
        with tf.device(self.handle.op.device or None):
            before = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=values.dtype)
            condition = tf.reshape(is_taken, [-1, *[1] * (values.shape.rank - 1)])
            merged = tf.raw_ops.SelectV2(condition=condition, t=values, e=before)
            return tf.raw_ops.AssignVariableOp(resource=self.handle, value=merged)


@dataclass(frozen=True)
class LogicalVariable:
    """A variable under the name that the single-device graph and checkpoints use."""

    name: str
    shape: tuple[int, ...]
    dtype: tf.DType
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Admission:
    """Describes how a worker takes part in steps that can complete without some workers
    (routes/ps/admission.py).

    `next_step` (int64) is fetched after a step. `next_step` waits until at least one step has been completed since this
    worker began its step, and returns the number of completed steps. After `close`, `next_step` returns CLOSED, and no
    more workers are admitted. `admitted` (bool) is fetched with a step, and is true if the step includes this worker's
    gradients. `steps_done` (int64) reads the number of completed steps from server 0.
    """

    next_step: tf.Tensor
    admitted: tf.Tensor
    close: tf.Operation
    steps_done: tf.Tensor


@dataclass(frozen=True)
class Carried:
    """A value that is carried over to the next step: fetched as `fetched`, and fed to the next step as `fed`."""

    fed: tf.Tensor
    fetched: tf.Tensor


@dataclass(frozen=True)
class Ahead:
    """The ops that prepare a step before it runs. They provide the step's random draws, and the rows that earlier steps
    will no longer change.

    `features` maps the names of features to the placeholders for the step's batch. `first` prepares the first step.
    `later` prepares every other step, while the previous step runs: a separate session run fetches `later`. It is fed
    the new batch and the values that were prepared for the previous step.
    """

    features: dict[str, tf.Tensor]
    first: tuple[Carried, ...]
    later: tuple[Carried, ...]


@dataclass(frozen=True)
class VocabularyCounts:
    """How full this worker's part of a map is. Its buckets have `places` rows each and `capacity` in all. `keys` of
    the rows are taken, `fullest` of them in one bucket, and `overflow` counts how often a step saw a key without a
    place. `waiting` keys have no row yet, and `evicted` counts the keys that have lost theirs (scalars, int64), None if
    the map does not count them. Fetch them outside of steps."""

    capacity: int
    places: int
    keys: tf.Tensor
    fullest: tf.Tensor
    overflow: tf.Tensor
    waiting: tf.Tensor | None = None
    evicted: tf.Tensor | None = None

    @property
    def counts(self) -> dict[str, tf.Tensor]:
        """The counts by name."""
        always = {"keys": self.keys, "fullest": self.fullest, "overflow": self.overflow}
        by_rules = {"waiting": self.waiting, "evicted": self.evicted}
        return always | {name: count for name, count in by_rules.items() if count is not None}


@dataclass(frozen=True)
class DistributedGraph:
    """One worker's graph, with all of its replicas.

    The op names of replica k have the prefix `prefixes[k]`, which is empty for the first replica. Replica k is fed
    through `features[k]`, and `loss` is the mean over the replicas. `metric_sums` contains what the batches of one
    step, over all replicas, add to the sums in the single-device graph's `metrics`, and `metric_last` the sums over all
    replicas of the values that count in the last step only. `validation_metric_sums` and `validation_metric_last` are
    the same for a validation batch, and `validation_rows` contains the rows of each metric of groups. Only the first
    replica runs validation. Validation batches are fed through `validation_features`. They may have any size if
    `validates_any_size` is true. Otherwise, they have the size of training batches. Some tensors are meaningful only in
    the single-device graph, such as a read of a variable that is on servers. `stands_for` maps the name of each such
    tensor to the tensor to fetch instead.

    `outputs` are the outputs of the served model for a validation batch.

    `initialize` runs first on the chief. Then the chief runs `release`, which signals to the other workers that the
    variables on servers exist. The other workers run `wait`, which waits for this signal. Then all ranks together run
    `agree`, which gives every rank the chief's values of replicated variables. A new session on existing variables runs
    only `open_inputs`, the part of `initialize` that initializes lookup tables and iterators. `open_late_inputs` runs
    after `initialize` or `open_inputs`, and initializes iterators that look up values in a table.

    `train_op` runs one step. `sent_bytes` (float64), fetched with a step, counts the bytes that the step sends through
    collectives and exchanges with servers. `sent_bytes` has one entry for each variable of the plan, in the plan's
    order, and a last entry for bytes that belong to no single variable. `applied` (scalar, bool) is true if the step
    changed the variables. `applied` is None if every step changes the variables. `device` is the device of this
    worker's own ops.

    If a read of variables needs all ranks, the ranks vote on whether to read. `vote` (scalar, float32, 0 if not fed) is
    this rank's vote, and `votes` is the sum of all ranks' votes. A vote takes place in a step or in a separate run.
    `variables` are the variables of the first replica. `copies` are the other replicas' copies of these variables. The
    copies are restored in the same way, but never saved. `ahead` is None if no step is prepared in advance.

    `finite_gradients` (bool, one entry for each variable in `with_gradients`) tells which raw gradients of this worker
    are finite. It can be fetched with a step.

    `vocabularies` counts the keys of the vocabularies that grow, by the paths of their layers.

    The other fields are mainly for asynchronous training. A field that the plan does not need is None. `mutex` is the
    lock that is held during a push, and during a consistent read of all variables. `staleness` (int64, one entry per
    replica) counts the pushes by other replicas between the step's pull and its push. `may_start` runs before a step
    and returns when the bound on staleness allows the step. `leave` runs after the last step and returns when all
    workers have finished their last steps. `mutex` and `leave` also exist with backup workers. `leave` also exists if
    workers run ops on the devices of other workers. `admission` exists only with backup workers.
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
    outputs: dict[str, tf.Tensor]
    metric_sums: tuple[tf.Tensor, ...]
    metric_last: tuple[tf.Tensor, ...]
    validation_metric_sums: tuple[tf.Tensor, ...]
    validation_metric_last: tuple[tf.Tensor, ...]
    validation_rows: dict[str, tuple[tf.Tensor, ...]]
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
    finite_gradients: tf.Tensor
    with_gradients: tuple[str, ...]
    vocabularies: dict[str, VocabularyCounts] = field(default_factory=dict)
    vote: tf.Tensor | None = None
    votes: tf.Tensor | None = None
    ahead: Ahead | None = None
    mutex: tf.Tensor | None = None
    staleness: tf.Tensor | None = None
    may_start: tf.Operation | None = None
    leave: tf.Operation | None = None
    admission: Admission | None = None
