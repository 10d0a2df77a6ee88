"""The pass that gives divisors of losses their values over all ranks. The equivalence matrix has it under mpirun."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph.single_device_graph import Divisor, DivisorKind, SingleDeviceGraph
from parallax_runner.graph.uneven_steps import with_share
from parallax_runner.plan.plan import Plan
from parallax_runner.rewrite.every_route.global_divisors import divide_by_all_ranks
from parallax_runner.rewrite.replica import start_replica
from tests.single.plans import with_options
from tests.single.small_models import Features, captured, lookup_model, planned


def divided(features: Features) -> tf.Tensor:
    return lookup_model(features) / tf.identity(tf.constant(6.0, tf.float64), name="marked")


def single(kind: DivisorKind) -> SingleDeviceGraph:
    return dataclasses.replace(captured(divided), divisors=(Divisor("marked:0", kind, 0),))


def value_by_which_it_divides(graph: SingleDeviceGraph, plan: Plan, share: float | None = None) -> Any:
    with tf.Graph().as_default() as made:
        rewrite = start_replica(graph, plan, made, replica=0, seed=1)
        division = rewrite.tensor("marked:0").consumers()[0]
        divide_by_all_ranks(rewrite)
        feeds = {} if share is None else {rewrite.share: share}
        with tf.Session(graph=made) as session:
            divisor = next(one for one in division.inputs if one.shape.rank == 0)
            return session.run(divisor, feeds)


def test_a_sum_is_divided_by_the_part_of_a_replica() -> None:
    graph = single(DivisorKind.ONE)
    assert value_by_which_it_divides(graph, dataclasses.replace(planned(graph, "mpi"), workers=4)) == 6 / 4


@pytest.mark.parametrize(("share", "expected"), [(1.0, 3.0), (0.5, 1.5), (0.0, 1.0)])
def test_the_share_of_a_replica_counts(share: float, expected: float) -> None:
    graph = with_share(single(DivisorKind.ONE))
    assert value_by_which_it_divides(graph, planned(graph, "mpi"), share) == expected


def test_nothing_changes_where_a_step_is_not_the_mean_over_all_replicas() -> None:
    graph = single(DivisorKind.ONE)
    plan = planned(graph, "ps")
    for other in (dataclasses.replace(plan, workers=1), with_options(plan, sync=False, backup_workers=0)):
        assert value_by_which_it_divides(graph, other) == 6
    undecided = single(DivisorKind.ONE_IF_SUM)
    assert value_by_which_it_divides(undecided, planned(undecided, "mpi")) == 6
