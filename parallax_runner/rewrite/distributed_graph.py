"""The noun that rewriting makes, and the state its passes share while they make it."""

from __future__ import annotations

from dataclasses import dataclass, field

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.plan import Plan


@dataclass(frozen=True)
class Piece:
    """A part of a logical variable: the resource `handle` holds `shape` values from `offset` (one a dimension) on."""

    handle: tf.Tensor
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    on_server: bool


@dataclass(frozen=True)
class LogicalVariable:
    """A variable as the single-device graph and checkpoints know it."""

    name: str
    shape: tuple[int, ...]
    dtype: tf.DType
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class DistributedGraph:
    """One rank's graph.

    `initialize` runs first on the chief; `release` tells the others that the servers' variables are there (an op on the
    chief), `wait` waits for that (an op on the others); then `agree` runs on all ranks at once and gives everybody the
    chief's values of replicated variables. `train_op` is one synchronous step. `sent_bytes` is what the step that
    fetches it handed to collectives and servers and got back from servers (scalar, float64). `applied` says whether the
    step changed the variables (scalar, bool); None where every step does. `device` is where this rank's own ops run.
    """

    graph: tf.Graph
    features: dict[str, tf.Tensor]
    loss: tf.Tensor
    train_op: tf.Operation
    validation_loss: tf.Tensor | None
    initialize: tf.Operation
    release: tf.Operation
    wait: tf.Operation
    agree: tf.Operation
    sent_bytes: tf.Tensor
    applied: tf.Tensor | None
    variables: tuple[LogicalVariable, ...]
    rank: int
    device: str


@dataclass
class Aggregate:
    """The tensors that stand, so far, for one raw gradient of `variables` (two may share a tensor).

    `name` is the same on all ranks: what ranks do together for this gradient is matched by it.
    """

    name: str
    variables: tuple[str, ...]
    values: tf.Tensor
    indices: tf.Tensor | None


@dataclass
class Shard:
    """A placed piece of a variable (or slot): rows [offset, offset + rows) on `device`."""

    handle: tf.Tensor
    offset: int
    rows: int
    device: str


@dataclass
class Rewrite:
    """What the passes read and change.

    `region` holds the ops that are to see aggregated gradients (graph/boundary.py); `step_ops` those that a step runs
    beside the train op; `sent` pairs of a tensor and how often its bytes are sent for this rank; `replaced` the names
    of tensors that no op of the region may read any more; `applied` whether the step changes variables,
    if that is asked.
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
    sent: list[tuple[tf.Tensor, float]] = field(default_factory=list)
    shards: dict[str, list[Shard]] = field(default_factory=dict)
    shard_initializers: list[tf.Operation] = field(default_factory=list)
    replaced: set[str] = field(default_factory=set)
    applied: tf.Tensor | None = None

    @property
    def is_chief(self) -> bool:
        """Whether this is rank 0, which runs what is to happen once."""
        return self.rank == 0

    def replace_gradient(self, gradient: Aggregate, values: tf.Tensor, indices: tf.Tensor | None) -> None:
        """Lets the update region read new tensors for a gradient."""
        for old, new in ((gradient.values, values), (gradient.indices, indices)):
            if old is not None and new is not None and old is not new:
                edit.reconnect(old, new, where=self.region.__contains__)
                self.replaced.add(old.name)
        gradient.values, gradient.indices = values, indices

    @property
    def worker_device(self) -> str:
        """Where this rank's own ops run; empty where there is no cluster of servers."""
        return f"/job:worker/task:{self.rank}" if self.plan.servers else ""
