"""Passes declare what they read and write of the state: declarations are true, and their order is checked."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.classify import classify
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import Divisor, DivisorKind, RankSum, SingleDeviceGraph
from parallax_runner.graph.uneven_steps import with_share
from parallax_runner.plan.comm_options import Lookahead, PsOptions
from parallax_runner.plan.plan import Plan
from parallax_runner.rewrite.passes import all_passes
from parallax_runner.rewrite.replica import start_replica
from parallax_runner.rewrite.rewrite_pass import FIELDS, PassOrderError, RewritePass, check_order, rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.rewrite.update_region.sharded_update import ShardedUpdate
from parallax_runner.routes.ps.state import PsState
from parallax_runner.routes.rewriting import rewritings
from tests.single.plans import plan_of, with_options
from tests.single.small_models import (
    FEATURES,
    Features,
    captured,
    clip,
    lookup_model,
    planned,
    planned_auto,
    routes_model,
)


class RecordedRewrite(Rewrite):
    """A state that records the fields that are looked at."""

    looked_at: set[str]

    def __getattribute__(self, name: str) -> Any:
        if name in FIELDS:
            object.__getattribute__(self, "looked_at").add(name)
        return object.__getattribute__(self, name)

    def of_route(self, kind: type[Any]) -> Any:
        if kind not in self.of_routes:
            self.of_routes[kind] = state = kind()
            state.__class__ = recording(kind, self)
        return self.of_routes[kind]


# The fields of the states that only the passes of one route share, by their names in declarations.
OF_ROUTES = {
    f"{route.state.__name__}.{one.name}": (route.state, one.name)
    for route in rewritings()
    if route.state is not None
    for one in dataclasses.fields(route.state)
}
ALL_FIELDS = FIELDS | set(OF_ROUTES)


def recording(kind: type[Any], rewrite: RecordedRewrite) -> type[Any]:
    """A class of a route's state that records the fields that are looked at."""

    class Recorded(kind):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            full_name = f"{kind.__name__}.{name}"
            if full_name in OF_ROUTES:
                rewrite.looked_at.add(full_name)
            return object.__getattribute__(self, name)

    return Recorded


def value_of(rewrite: RecordedRewrite, field: str) -> Any:
    """The value of a field of the state, or of the state of a route."""
    if field not in OF_ROUTES:
        return getattr(rewrite, field)
    kind, name = OF_ROUTES[field]
    return getattr(rewrite.of_route(kind), name)


def contents(value: Any) -> Any:
    """What is equal only as long as nothing in a field of the state changes."""
    if isinstance(value, ShardedUpdate):  # has the state itself
        return id(value)
    if isinstance(value, dict):
        return {key: contents(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [contents(each) for each in value]
    if isinstance(value, set):
        return set(value)
    params = getattr(value, "__dataclass_params__", None)
    if params is not None and not params.frozen:
        return [contents(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return id(value)


@dataclasses.dataclass
class Used:
    """The fields that a pass looked at, and those that it changed."""

    looked_at: set[str] = dataclasses.field(default_factory=set)
    changed: set[str] = dataclasses.field(default_factory=set)


def recorded(
    single: SingleDeviceGraph, plan: Plan, *, is_chief: bool = False
) -> tuple[tf.Graph, list[RecordedRewrite]]:
    """The replicas of the second worker of a plan, or of the only one; or those of the chief."""
    worker = 0 if is_chief else min(1, plan.workers - 1)
    replicas: list[RecordedRewrite] = []
    with tf.Graph().as_default() as graph:
        for number in range(plan.replicas_per_worker):
            replica = worker * plan.replicas_per_worker + number
            rewrite = start_replica(single, plan, graph, replica=replica, seed=1, skip_nonfinite=True)
            rewrite.__class__ = RecordedRewrite
            assert isinstance(rewrite, RecordedRewrite)
            rewrite.looked_at = set()
            rewrite.siblings = replicas  # type: ignore[assignment]
            replicas.append(rewrite)
    return graph, replicas


def run(one: RewritePass, graph: tf.Graph, replicas: Sequence[RecordedRewrite], used: Used) -> None:
    for rewrite in replicas:
        before = [{name: contents(value_of(each, name)) for name in ALL_FIELDS} for each in replicas]
        for each in replicas:
            each.looked_at = set()
        with graph.as_default(), tf.device(rewrite.worker_device):
            one(rewrite)
        for each, old in zip(replicas, before, strict=True):
            used.looked_at |= each.looked_at
            used.changed |= {name for name in ALL_FIELDS if contents(value_of(each, name)) != old[name]}


def faults(one: RewritePass, used: Used) -> list[str]:
    """What a pass does and does not declare. Whether it reads what it also writes cannot be seen: adding to a list
    looks at it."""
    reads, writes = used.looked_at - one.reads - one.writes, used.changed - one.writes
    return [f"{one.name} reads {name}" for name in sorted(reads - writes)] + [
        f"{one.name} writes {name}" for name in sorted(writes)
    ]


def reads_all_rows(features: Features) -> tf.Tensor:
    """The model, with a number that it makes of a whole table."""
    output = lookup_model(features)
    return output + tf.stop_gradient(tf.reduce_max(table().read_value()))


def counts_examples(features: Features) -> tf.Tensor:
    """The model, with a count that declares how ranks merge it."""
    seen = tf.get_variable(
        "seen", [], tf.int64, tf.zeros_initializer(), trainable=False, aggregation=tf.VariableAggregation.SUM
    )
    with tf.control_dependencies([seen.assign_add(4)]):
        return tf.identity(lookup_model(features))


def divides_by_count(features: Features) -> tf.Tensor:
    """The model, divided by a number of the batch, which is summed over the replicas first."""
    summed = tf.identity(tf.cast(tf.size(features["ids"]), tf.float64), name="summed")
    return lookup_model(features) / tf.identity(summed, name="marked")


def scaled_by_all_rows(gradients: list[Any]) -> list[Any]:
    """Clipped by their norm, and a dense one scaled by what the whole table has behind the gradients."""
    rows, dense = clip(gradients)
    with tf.control_dependencies([rows.values]):
        whole = table().read_value()
    return [rows, dense * tf.reduce_max(whole)]


def one_update(features: Features) -> dict[str, Any]:
    """A train op that is itself the update of a variable."""
    loss = tf.reduce_sum(tf.square(lookup_model(features)))
    (rows,) = tf.gradients(loss, [table()])
    train_op = tf.raw_ops.ResourceScatterSub(resource=table().handle, indices=rows.indices, updates=0.1 * rows.values)
    return {"loss": loss, "train_op": train_op}


def table() -> tf.Variable:
    (found,) = [one for one in tf.global_variables() if one.op.name == "table"]
    return found


def growing_model(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """A vocabulary that grows."""
    from parallax_runner.layers import GrowingEmbedding  # imports Keras

    table = GrowingEmbedding(2, 1024, seed=1, name="growing", dtype="float64")
    return tf.reduce_sum(table(features["ids"], training=True), axis=1)


def growing_beside_table(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """A vocabulary that grows beside a table that does not, so that ranks own rows, and servers own rows."""
    return growing_model(features) + lookup_model(features)


def scenarios() -> list[tuple[SingleDeviceGraph, Plan]]:
    """Plans that make every pass do all that it can."""

    single = captured(process=clip, optimizer="adam")
    reading = [captured(reads_all_rows), captured(process=scaled_by_all_rows)]
    single_auto, counting = captured(routes_model, process=clip), captured(counts_examples)
    uneven = with_share(counting)
    divided = dataclasses.replace(
        captured(divides_by_count),
        divisors=(Divisor("marked:0", DivisorKind.COUNT, 0),),
        rank_sums=(RankSum("summed:0", is_gradient=False),),
    )
    ahead = captured()
    asked_ahead = plan_of(classify(ahead), comm="sharded", fingerprint=ahead.fingerprint, lookahead=Lookahead.ON)
    ps = planned(single, "ps", partitions=2)
    direct = capture(one_update, FEATURES, seed=1)
    direct_ps = planned(direct, "ps")
    counters = ("global_step", "beta1_power", "beta2_power")
    together = dataclasses.replace(ps, replicas_per_worker=2)
    shared = dataclasses.replace(ps, counters=counters)
    three, direct_three = (dataclasses.replace(plan, workers=3) for plan in (shared, direct_ps))
    growing, beside = captured(growing_model), captured(growing_beside_table, process=clip)
    return [
        (growing, planned(growing, "sharded")),
        (beside, planned(beside, "hybrid", partitions=2)),
        *((single, planned(single, comm, partitions=2)) for comm in ("local", "mpi", "ps", "hybrid", "sharded")),
        *((one, planned(one, "sharded")) for one in reading),
        *((counting, planned(counting, comm)) for comm in ("mpi", "ps")),
        (uneven, planned(uneven, "mpi")),
        *((divided, planned(divided, comm)) for comm in ("mpi", "ps")),
        (single_auto, planned_auto(single_auto)),
        (ahead, asked_ahead),
        (single, together),
        (single, with_options(together, ps=PsOptions(replicate_variables=True))),
        (single, with_options(shared, sync=False, staleness=2)),
        (single, with_options(three, backup_workers=1)),
        (direct, direct_ps),
        (direct, planned(direct, "sharded")),
        (direct, with_options(direct_ps, sync=False)),
        (direct, with_options(direct_three, backup_workers=1)),
    ]


def test_passes_read_and_write_what_they_declare_and_no_more() -> None:
    used: defaultdict[str, Used] = defaultdict(Used)
    of_ranks = [recorded(single, plan) for single, plan in scenarios()]
    with_servers = captured(process=clip)
    of_ranks.append(recorded(with_servers, planned(with_servers, "hybrid"), is_chief=True))
    for graph, replicas in of_ranks:
        for one in all_passes():
            run(one, graph, replicas, used[one.name])
            assert faults(one, used[one.name]) == []
    for one in all_passes():
        assert one.reads - used[one.name].looked_at == set(), f"{one.name} never reads these"
        assert one.writes - used[one.name].changed == set(), f"{one.name} never writes these"
        assert one.reads & one.writes == set(), f"{one.name} writes them, and so may read them"


def test_what_is_not_declared_is_found() -> None:
    @rewrite_pass(reads=["gradients"], writes=["sent"])
    def hasty(rewrite: Rewrite) -> None:
        assert rewrite.gradients and not rewrite.sent
        rewrite.gradients[0].values = tf.identity(rewrite.gradients[0].values)
        rewrite.coordination.leads = tf.constant(True)
        assert not rewrite.of_route(PsState).pulled

    single, used = captured(), Used()
    run(hasty, *recorded(single, planned(single, "mpi")), used)
    assert faults(hasty, used) == ["hasty reads PsState.pulled", "hasty writes coordination", "hasty writes gradients"]


def test_a_field_that_the_state_does_not_have_cannot_be_declared() -> None:
    with pytest.raises(PassOrderError, match="pass nothing declares colour, expected fields of Rewrite"):

        @rewrite_pass(reads=["colour"])
        def nothing(rewrite: Rewrite) -> None:
            pass

    with pytest.raises(PassOrderError, match="declares plan, expected fields of Rewrite"):

        @rewrite_pass(writes=["plan"])
        def another_plan(rewrite: Rewrite) -> None:
            pass


@pytest.mark.parametrize(
    ("moved", "before", "message"),
    [
        ("accumulate_gradients", "shard_variables", "reads coordination, placements, which no earlier pass writes"),
        ("update_on_servers", "update_placed_variables", "reads update, which no earlier pass writes"),
        ("replicate_dense_variables", "share_counters", "reads PsState.updated, which no earlier pass writes"),
        ("send_to_owners", "spread_over_ranks", "reads AlltoallState.known_ids, which no earlier pass writes"),
        ("send_early", "skip_nonfinite_steps", "reads .*sent.*, which the later pass skip_nonfinite_steps writes"),
    ],
)
def test_a_wrong_order_is_found(moved: str, before: str, message: str) -> None:
    passes = {one.name: one for one in all_passes()}
    (one, rest) = passes.pop(moved), list(passes.values())
    check_order(all_passes())
    place = rest.index(passes[before])
    with pytest.raises(PassOrderError, match=f"pass {moved} {message}"):
        check_order([*rest[:place], one, *rest[place:]])
