"""The passes that turn a single-device graph into the graph of one rank, in order."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain

import tensorflow.compat.v1 as tf

from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.plan import Plan
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.rewrite.every_route.fed_alike import check_fed_alike
from parallax_runner.rewrite.every_route.global_divisors import divide_by_all_ranks
from parallax_runner.rewrite.every_route.integrity import RewriteError, check
from parallax_runner.rewrite.every_route.merge import merge_sparse_gradients
from parallax_runner.rewrite.every_route.merge_declared import merge_declared_variables
from parallax_runner.rewrite.every_route.place import place_on_worker
from parallax_runner.rewrite.every_route.skip_deduplication import skip_deduplication
from parallax_runner.rewrite.every_route.skip_nonfinite import skip_nonfinite_steps
from parallax_runner.rewrite.every_route.sum_where_asked import sum_where_asked
from parallax_runner.rewrite.every_route.weigh_by_share import weigh_by_share
from parallax_runner.rewrite.join_replicas import joined
from parallax_runner.rewrite.replica import start_replica
from parallax_runner.rewrite.rewrite_pass import RewritePass, check_order
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.rewrite.schedule.send_early import send_early
from parallax_runner.rewrite.update_region.update_placed import update_placed_variables
from parallax_runner.routes.rewriting import RouteRewriting, rewritings


def order_of(routes: Collection[RouteRewriting]) -> tuple[RewritePass, ...]:
    """Returns the passes of `routes` together with the passes that every route needs.

    Raises PassOrderError if a pass reads a field before another pass writes it, or declares an unknown field.
    """
    for route in routes:
        for one in route.passes:
            one.check_state(route.state)
    passes = (
        check_fed_alike,
        sum_where_asked,
        divide_by_all_ranks,
        weigh_by_share,
        merge_sparse_gradients,
        skip_deduplication,
        *chain.from_iterable(route.exchange for route in routes),
        *chain.from_iterable(route.place for route in routes),
        *chain.from_iterable(route.aggregate for route in routes),
        update_placed_variables,
        *chain.from_iterable(route.update for route in routes),
        merge_declared_variables,
        skip_nonfinite_steps,
        *chain.from_iterable(route.after for route in routes),
        send_early,
    )
    check_order(passes)
    return passes


def all_passes() -> tuple[RewritePass, ...]:
    """Returns the passes of all routes. A pass changes nothing if the plan does not use its route."""
    return order_of(rewritings())


def rewrite_for_rank(
    single: SingleDeviceGraph,
    plan: Plan,
    *,
    rank: int,
    seed: int,
    first_step: int = 0,
    skip_nonfinite: bool = False,
    device_type: str = "CPU",
) -> DistributedGraph:
    """Returns the graph of one worker, with all of its replicas.

    `seed` is train.seed. `first_step` is the global step at which the session starts. With `skip_nonfinite`, the update
    of a step is skipped if its loss or gradients contain NaN or infinity. If a worker has several replicas, each
    replica runs on its own device of type `device_type`.

    The graph is checked once, after all passes. If it is wrong, the passes run again and the graph is checked after
    each of them. Raises RewriteError, which names the pass that broke the graph.
    """

    def begun() -> list[Rewrite]:
        return _begun(
            single,
            plan,
            worker=rank,
            seed=seed,
            first_step=first_step,
            skip_nonfinite=skip_nonfinite,
            device_type=device_type,
        )

    replicas = begun()
    try:
        _run_passes(replicas)
    except RewriteError:
        _run_passes(begun(), checks_each=True)
        raise
    with replicas[0].graph.as_default():
        return joined(replicas, worker=rank)


def _begun(
    single: SingleDeviceGraph,
    plan: Plan,
    *,
    worker: int,
    seed: int,
    first_step: int,
    skip_nonfinite: bool,
    device_type: str,
) -> list[Rewrite]:
    """Returns the replicas of a worker in a new graph, before the first pass."""
    graph = tf.Graph()
    replicas: list[Rewrite] = []
    with graph.as_default():
        for number in range(plan.replicas_per_worker):
            rewrite = start_replica(
                single,
                plan,
                graph,
                replica=worker * plan.replicas_per_worker + number,
                seed=seed,
                first_step=first_step,
                skip_nonfinite=skip_nonfinite,
                device_type=device_type,
            )
            rewrite.siblings = replicas
            # This must happen before the next replica is imported, since the ops of the next replica are placed on a
            # different device.
            place_on_worker(rewrite)
            replicas.append(rewrite)
    return replicas


def _run_passes(replicas: list[Rewrite], *, checks_each: bool = False) -> None:
    """Runs all passes. Raises RewriteError if the graph is wrong: after each pass with `checks_each`, otherwise after
    the last pass."""
    passes = all_passes()
    # After this pass, all updates are where their variables are.
    updated_after = passes.index(skip_nonfinite_steps) - 1
    for number, one in enumerate(passes):
        is_checked = checks_each or one is passes[-1]
        for rewrite in replicas:
            with rewrite.graph.as_default(), tf.device(rewrite.worker_device):
                one(rewrite)
            if is_checked:
                check(rewrite, after=one.name, is_updated=number >= updated_after)
