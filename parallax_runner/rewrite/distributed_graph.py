"""The noun that rewriting makes, and the state its passes share while they make it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.plan import Plan
from parallax_runner.rewrite.exchange.sent import Sent

if TYPE_CHECKING:
    from parallax_runner.rewrite.routes.alltoall.known_ids import Asked

CLOSED = -1  # the next step, where there is none


@dataclass(frozen=True)
class Modulo:
    """Which of `rows` rows are a rank's own: each `ranks`-th from row `rank` on."""

    rank: int
    ranks: int
    rows: int

    def count(self, rank: int) -> int:
        """How many rows are `rank`'s own."""
        return len(range(rank, self.rows, self.ranks))


@dataclass
class Shard:
    """A placed piece of a variable (or slot) for `variable` of the plan: `rows` rows, each `step`-th from row `offset`
    on, on the server of `device`; or with `modulo` this rank's own rows."""

    handle: tf.Tensor
    variable: str
    offset: int
    rows: int
    device: str
    step: int = 1
    modulo: Modulo | None = None

    def take(self, value: tf.Tensor) -> tf.Tensor:
        """Of a value [rows, ...] of the whole variable the rows that are here."""
        return value[self.offset : self.offset + self.rows * self.step : self.step]

    def places_of(self, ids: tf.Tensor) -> tf.Tensor:
        """Where the rows of ids that are here stand in the shard."""
        return ids if (self.offset, self.step) == (0, 1) else (ids - self.offset) // self.step

    def ids_at(self, places: tf.Tensor) -> tf.Tensor:
        """The ids of the shard's rows at these places."""
        return places * self.step + self.offset


@dataclass(frozen=True)
class OwnRows:
    """A part of a variable that is spread over the ranks: this rank's `shard` of it and its `read`; `whole` is all rows
    on the chief and none on the others. To run `whole` is a collective; its values are of the moment of `read`."""

    shard: Shard
    read: tf.Tensor
    whole: tf.Tensor


def index(offset: tuple[int, ...], shape: tuple[int, ...], step: int) -> tuple[slice, ...]:
    """That of `shape` values from `offset` (one a dimension) on, of the first dimension each `step`-th."""
    steps = (step, *(1 for _ in shape[1:]))[: len(shape)]
    return tuple(
        slice(start, start + size * every, every) for start, size, every in zip(offset, shape, steps, strict=True)
    )


@dataclass(frozen=True)
class Piece:
    """A part of a logical variable: `shape` values from `offset` (one a dimension) on, of the first dimension each
    `step`-th. The resource `handle` holds them, or with `own` this rank's own rows of them."""

    handle: tf.Tensor
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    on_server: bool
    own: OwnRows | None = None
    step: int = 1

    @property
    def where(self) -> tuple[slice, ...]:
        """The part as an index into the whole variable."""
        return index(self.offset, self.shape, self.step)


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
class DistributedGraph:
    """One worker's graph, with all of its replicas.

    Replica number k of this worker has the single-device graph's names behind `prefixes[k]`, the first no prefix; it is
    fed through `features[k]`. `loss` is the mean over them. `stands_for` has, by the name of a tensor that only makes
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
    Where variables are spread over the ranks, who reads them needs all ranks: `wish` (scalar, float32, 0 if not fed) is
    what one of them wishes with a step, or without one, and `wishes` the sum over ranks.
    `variables` are those of its first replica; `copies` those that its other replicas keep each for itself, which are
    restored as the first one's are, and never saved.

    The rest is for asynchronous training, None otherwise. `turn` is the lock that a push holds, and whoever reads all
    variables at one moment; `staleness` (int64, one a replica) says how many pushes of others the step's own came after
    its pull; `may_start` is run before a step and returns when the bound on staleness allows it; `leave` is run after
    the last step and returns when all workers have come to theirs. `turn` and `leave` are also there with backup
    workers, and only then `admission`.
    """

    graph: tf.Graph
    prefixes: tuple[str, ...]
    features: tuple[dict[str, tf.Tensor], ...]
    stands_for: dict[str, tf.Tensor]
    loss: tf.Tensor
    train_op: tf.Operation
    validation_loss: tf.Tensor | None
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
    wish: tf.Tensor | None = None
    wishes: tf.Tensor | None = None
    turn: tf.Tensor | None = None
    staleness: tf.Tensor | None = None
    may_start: tf.Operation | None = None
    leave: tf.Operation | None = None
    admission: Admission | None = None


@dataclass
class Aggregate:
    """The tensors that stand, so far, for one raw gradient of `variables` (two may share a tensor).

    `name` is the same on all ranks: what ranks do together for this gradient is matched by it.
    """

    name: str
    variables: tuple[str, ...]
    values: tf.Tensor
    indices: tf.Tensor | None

    @property
    def tensors(self) -> list[tf.Tensor]:
        """Its values, and its indices if it has some."""
        return [self.values] if self.indices is None else [self.values, self.indices]


@dataclass
class Rewrite:
    """What the passes read and change: one replica of the graph. `rank` is its number among all replicas.

    `prefix` stands before the names of its ops, where a worker has several replicas in one graph, which are all in
    `siblings`; `pushes` says by a gradient's name what is pushed in its place, None for nothing.
    `region` holds the ops that are to see aggregated gradients (graph/boundary.py); `step_ops` those that a step runs
    beside the train op; `sent` what is sent for this rank; `replaced` the names of tensors that no op of the
    region may read any more; `applied` whether the step changes variables, if that is asked; `counters` the variables
    that are on server 0, one for all replicas; `pulled` what travels from servers for the reads of a variable that wait
    for nothing; `updated` the op that has run when a step's updates on servers have; `first_copies` the ops that give
    copies of servers' variables their first values;
    `asked` which rows of variables that are spread over ranks were looked up by which ids; `row_orders` how rows come
    into order that all ranks have sent, by how many there are;
    `leads` whether it is this replica that updates, where that is decided in each step; the rest as in
    `DistributedGraph`.
    """

    single: SingleDeviceGraph
    plan: Plan
    rank: int
    graph: tf.Graph
    region: frozenset[tf.Operation]
    gradients: list[Aggregate]
    train_op: tf.Operation
    skip_nonfinite: bool
    step_ops: list[tf.Operation] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    shards: dict[str, list[Shard]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    row_orders: dict[int, tf.Tensor] = field(default_factory=dict)
    shard_initializers: list[tf.Operation] = field(default_factory=list)
    own_initializers: list[tf.Operation] = field(default_factory=list)
    replaced: set[str] = field(default_factory=set)
    applied: tf.Tensor | None = None
    prefix: str = ""
    device_type: str | None = None
    stands_for: dict[str, tf.Tensor] = field(default_factory=dict)
    siblings: list[Rewrite] = field(default_factory=list, repr=False)
    pushes: dict[str, tuple[tf.Tensor, tf.Tensor | None] | None] = field(default_factory=dict)
    counters: set[str] = field(default_factory=set)
    pulled: dict[str, tf.Tensor] = field(default_factory=dict)
    updated: tf.Operation | None = None
    first_copies: list[tf.Operation] = field(default_factory=list)
    turn: tf.Tensor | None = None
    staleness: tf.Tensor | None = None
    may_start: tf.Operation | None = None
    first_step: int = 0
    admission: Admission | None = None
    leads: tf.Tensor | None = None

    @property
    def is_chief(self) -> bool:
        """Whether this is replica 0, which runs what is to happen once."""
        return self.rank == 0

    def op(self, name: str) -> tf.Operation:
        """This replica's op of a name in the single-device graph."""
        return self.graph.get_operation_by_name(self.prefix + name)

    def tensor(self, name: str) -> tf.Tensor:
        """This replica's tensor of a name in the single-device graph."""
        return self.graph.get_tensor_by_name(self.prefix + name)

    def is_sharded(self, variable: str) -> bool:
        """Whether a variable of the single-device graph has moved to servers, or is spread over the ranks."""
        return self.prefix + variable in self.shards

    def shards_of(self, variable: str) -> list[Shard]:
        """The shards of a variable of the single-device graph."""
        return self.shards[self.prefix + variable]

    def replace_gradient(self, gradient: Aggregate, values: tf.Tensor, indices: tf.Tensor | None) -> None:
        """Lets the update region read new tensors for a gradient."""
        for old, new in ((gradient.values, values), (gradient.indices, indices)):
            if old is not None and new is not None and old is not new:
                edit.reconnect(old, new, where=self.region.__contains__)
                self.replaced.add(old.name)
        gradient.values, gradient.indices = values, indices

    @property
    def worker_device(self) -> str:
        """Where this replica's own ops run; empty where there is no cluster of servers."""
        if not self.plan.servers:
            return ""
        worker, number = divmod(self.rank, self.plan.replicas_per_worker)
        device = f"/device:{self.device_type}:{number}" if self.device_type else ""
        return f"/job:worker/task:{worker}{device}"
