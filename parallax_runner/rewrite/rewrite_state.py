"""The state that passes share while they rewrite one replica of the graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import tensorflow.compat.v1 as tf

from parallax_runner.data.shares import SHARE
from parallax_runner.graph import edit
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.plan import Plan
from parallax_runner.rewrite.distributed_graph import Admission, Ahead
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.placement import Placement

if TYPE_CHECKING:
    from parallax_runner.rewrite.update_region.sharded_update import ShardedUpdate
    from parallax_runner.rewrite.update_region.sharded_value import ShardedValue

State = TypeVar("State")

# No pass changes these fields.
GIVEN = frozenset(
    {
        *("single", "plan", "rank", "graph", "region", "skip_nonfinite", "prefix", "device_type", "first_step"),
        *("siblings", "of_routes"),
    }
)
# These fields have a value before the first pass, and passes change them.
FROM_THE_START = frozenset({"gradients", "train_op"})


@dataclass
class Merged:
    """What a gradient was before its rows were merged: `addends` [n, ...], and the position (int32 [n]) of each
    addend's id among the merged ids."""

    addends: tf.Tensor
    positions: tf.Tensor


@dataclass
class RankGradient:
    """The current tensors of one raw gradient of `variables` (two variables may share a tensor).

    `name` is the same on all ranks, so that the ranks' collectives for this gradient match. `merged` is not None while
    `values` are the sums of its addends.
    """

    name: str
    variables: tuple[str, ...]
    values: tf.Tensor
    indices: tf.Tensor | None
    merged: Merged | None = None

    @property
    def tensors(self) -> list[tf.Tensor]:
        """The values, and the indices if the gradient is sparse."""
        return [self.values] if self.indices is None else [self.values, self.indices]


@dataclass
class Initializers:
    """Ops that assign initial values.

    `shared` initializes variables that all ranks share. Only the chief runs these ops. `own` initializes this rank's
    variables. `copies` initializes this rank's copies of shared variables, after the shared variables are initialized.
    `loops` contains, for each device, the last op that makes an initial value in blocks.
    """

    shared: list[tf.Operation] = field(default_factory=list)
    own: list[tf.Operation] = field(default_factory=list)
    copies: list[tf.Operation] = field(default_factory=list)
    loops: dict[str, tf.Operation] = field(default_factory=dict)


@dataclass
class Coordination:
    """Describes how replicas share variables if they do not wait for each other. Otherwise, all fields are None.

    `leads` is true if this replica runs the update. It is None unless a leader is chosen in each step. The other
    fields have the same meaning as in `DistributedGraph`.
    """

    mutex: tf.Tensor | None = None
    staleness: tf.Tensor | None = None
    may_start: tf.Operation | None = None
    admission: Admission | None = None
    leads: tf.Tensor | None = None


@dataclass
class Rewrite:
    """The state of one replica of the graph, which the passes read and change. `rank` is the replica's index among all
    replicas.

    If a worker has several replicas in one graph, `siblings` lists them and `prefix` is prepended to the names of this
    replica's ops. `region` contains the ops that read aggregated gradients (graph/boundary.py).

    `gradients` are the current gradients. `replaced` contains the names of tensors that ops of the region may no longer
    read. `step_ops` are ops that a step runs in addition to the train op. `sent` lists the tensors that are sent for
    this rank. `applied` is true if the step changes variables, or None if every step changes them. `stands_for` has the
    same meaning as in `DistributedGraph`.

    `placements` contains the placement of each variable or slot that is not stored whole on every rank. `aggregates`
    maps the tensors of gradients to their aggregates, which are where the rows of placed variables are. `update` is the
    traversal of the update region with these aggregates, or None if there are none. `row_orders` maps a number of rows
    to the permutation that sorts rows collected from all ranks. `counters` are the variables on server 0 that all
    replicas share. `ahead` describes what a step requests for the next step, or is None. `of_routes` contains what the
    passes of single routes share (`of_route`).
    """

    single: SingleDeviceGraph
    plan: Plan
    rank: int
    graph: tf.Graph
    region: frozenset[tf.Operation]
    gradients: list[RankGradient]
    train_op: tf.Operation
    skip_nonfinite: bool
    prefix: str = ""
    device_type: str | None = None
    first_step: int = 0
    siblings: list[Rewrite] = field(default_factory=list, repr=False)
    replaced: set[str] = field(default_factory=set)
    step_ops: list[tf.Operation] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    applied: tf.Tensor | None = None
    stands_for: dict[str, tf.Tensor] = field(default_factory=dict)
    placements: dict[str, Placement] = field(default_factory=dict)
    aggregates: dict[str, ShardedValue] = field(default_factory=dict)
    update: ShardedUpdate | None = None
    row_orders: dict[int, tf.Tensor] = field(default_factory=dict)
    counters: set[str] = field(default_factory=set)
    initializers: Initializers = field(default_factory=Initializers)
    coordination: Coordination = field(default_factory=Coordination)
    ahead: Ahead | None = None
    of_routes: dict[type, object] = field(default_factory=dict, repr=False)

    @property
    def is_chief(self) -> bool:
        """Whether this is replica 0, which runs the ops that are needed only once for all replicas."""
        return self.rank == 0

    @property
    def worker_device(self) -> str:
        """The device of this replica's own ops, or an empty string if there is no cluster of servers."""
        if not self.plan.servers:
            return ""
        worker, number = divmod(self.rank, self.plan.replicas_per_worker)
        device = f"/device:{self.device_type}:{number}" if self.device_type else ""
        return f"/job:worker/task:{worker}{device}"

    @property
    def share(self) -> tf.Tensor | None:
        """This replica's share of a step's examples (float64, scalar), or None if all replicas always have equally
        many."""
        return self.tensor(self.single.features[SHARE]) if self.single.is_uneven else None

    @property
    def is_mean_over_all(self) -> bool:
        """Whether a step is the mean over several replicas, all of which take part in it."""
        options = self.plan.options
        return self.plan.replicas > 1 and options.sync and not options.backup_workers

    def of_route(self, kind: type[State]) -> State:
        """Returns the state that the passes of one route share. `kind` is its `RouteRewriting.state`."""
        found = self.of_routes.setdefault(kind, kind())
        assert isinstance(found, kind)
        return found

    def op(self, name: str) -> tf.Operation:
        """Returns this replica's copy of the op `name` of the single-device graph."""
        return self.graph.get_operation_by_name(self.prefix + name)

    def tensor(self, name: str) -> tf.Tensor:
        """Returns this replica's copy of the tensor `name` of the single-device graph."""
        return self.graph.get_tensor_by_name(self.prefix + name)

    def fetched_together(self) -> list[list[tf.Operation]]:
        """Returns the groups of ops that run together: in a step, in a fetch of the loss alone, or in validation."""
        together = [self.single.fetched_in_training, [self.single.loss], self.single.fetched_in_validation]
        step, *others = [[self.tensor(name).op for name in names] for names in together]
        return [[self.train_op, *step], *filter(None, others)]

    def placement_of(self, variable: str) -> Placement | None:
        """Returns the placement of a variable of the single-device graph, or None if each rank has the whole
        variable."""
        return self.placements.get(self.prefix + variable)

    def gradients_by(self, route: str) -> list[RankGradient]:
        """Returns the gradients whose (first) variable has this route in the plan, in a fixed order."""
        chosen = {variable.name for variable in self.plan.by_route(route)}
        return [gradient for gradient in self.gradients if gradient.variables[0] in chosen]

    def replace_gradient(self, gradient: RankGradient, values: tf.Tensor, indices: tf.Tensor | None) -> None:
        """Makes the update region read new tensors for a gradient."""
        for old, new in ((gradient.values, values), (gradient.indices, indices)):
            if old is not None and new is not None and old is not new:
                edit.reconnect(old, new, where=self.region.__contains__)
                self.replaced.add(old.name)
        gradient.values, gradient.indices, gradient.merged = values, indices, None
