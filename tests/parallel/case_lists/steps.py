"""Cases of what a step does: several updates, accumulation, passes, and updates as the configuration says."""

from __future__ import annotations

import itertools
from typing import Any

from tests.parallel.cases import KERAS, OPTIMIZERS, Case
from tests.parallel.configured import CONFIGURED


def table_cases() -> list[Case]:
    """Returns cases with a lookup table, in every mode, with replicas and with pieces on servers."""
    return [
        Case(comm="mpi", model="table"),
        Case(comm="hybrid", model="table", ranks=3, partitions=4),
        Case(comm="ps", model="table", replicas=2, partitions=3),
        Case(comm="ps", model="table", ranks=3, among_servers=False, between=False),
        Case(comm="sharded", model="table", ranks=3),
        Case(comm="sharded", model="table", lookahead="off"),
    ]


def chained_cases() -> list[Case]:
    """Returns cases with two updates in one step, the second by gradients that are computed after the first."""
    return [
        Case(comm="mpi", model="chained", optimizer="adam"),
        Case(comm="mpi", model="chained", optimizer="momentum", ranks=3, reroute=".allreduce"),
        Case(comm="mpi", model="chained", optimizer="adagrad", ranks=3, use_allgatherv=True),
        Case(comm="hybrid", model="chained", optimizer="rmsprop", ranks=3, partitions=4),
        Case(comm="sharded", model="chained", optimizer="adam", ranks=3),
    ]


def accumulated_cases() -> list[Case]:
    """Returns cases that add up gradients over several steps before an update; also in a branch, which no server can
    run."""
    return [
        *(
            Case(comm=comm, model="accumulated", optimizer=optimizer, partitions=partitions, clip=clip)
            for comm, optimizer, partitions, clip in (
                ("mpi", "adam", 1, True),
                ("ps", "momentum", 3, False),
                ("ps", "adam", 1, True),
                ("hybrid", "adam", 2, True),
                ("sharded", "adam", 1, True),
            )
        ),
        *(
            Case(comm=comm, model="accumulated_branch", optimizer="adam", clip=True)
            for comm in ("mpi", "hybrid", "sharded")
        ),
        Case(comm="mpi", model="accumulated", variables="reference", average_sparse=False, reroute=".allreduce"),
        Case(comm="hybrid", model="accumulated", variables="reference", average_sparse=False, partitions=3),
        Case(comm="sharded", model="accumulated", user_parts=3, average_sparse=False),
        Case(comm="ps", model="accumulated", replicas=2, optimizer="adam", partitions=3, spoilt_step=4),
        Case(comm="sharded", model="accumulated", optimizer="adam", spoilt_step=4),
        Case(comm="hybrid", model="accumulated", optimizer="adam", partitions=2, spoilt_step=4),
    ]


def joined_cases() -> list[Case]:
    """Returns cases whose model concatenates the gradients of several micro-batches, so ids may repeat."""
    routes = [
        {"comm": "mpi"},
        {"comm": "ps", "partitions": 2},
        {"comm": "hybrid"},
        {"comm": "hybrid", "partitions": 3},
        {"comm": "sharded"},
    ]
    models = ("joined", "joined_once", "joined_in_order")
    return [
        Case(**route, model=model, optimizer=optimizer, clip=model != "joined_in_order", average_sparse=number != 1)
        for number, (route, model) in enumerate(itertools.product(routes, models))
        for optimizer in [tuple(OPTIMIZERS)[(number + number // 5) % 6]]
    ] + [
        Case(comm="mpi", model="joined", optimizer="adam", reroute=".allreduce"),
        Case(comm="ps", model="joined", replicas=2, partitions=3, optimizer="adam", clip=True, user_parts=3),
        Case(comm="hybrid", model="joined", ranks=3, partitions=3, optimizer="adam", clip=True, spoilt_step=4),
        Case(comm="sharded", model="joined", ranks=3, optimizer="adam", clip=True, variables="reference"),
        *(
            Case(comm="ps", model=model, partitions=3, optimizer="adam", clip=True, among_servers=False)
            for model in ("joined", "joined_once")
        ),
    ]


def keras_cases() -> list[Case]:
    """Returns cases with updates as Keras' optimizers write them."""
    routes: list[dict[str, Any]] = [
        {"comm": "mpi"},
        {"comm": "ps", "partitions": 4},
        {"comm": "hybrid", "partitions": 4},
        {"comm": "sharded"},
    ]
    return [
        *(Case(**route, optimizer=optimizer) for route, optimizer in itertools.product(routes, KERAS)),
        *(Case(**route, optimizer="keras_adamw", ranks=3, spoilt_step=4) for route in routes),
        Case(comm="mpi", optimizer="keras_adam", ranks=3, reroute=".allreduce"),
        Case(comm="ps", optimizer="keras_adam", replicas=2, partitions=3),
        Case(comm="ps", optimizer="keras_adam_clipped", partitions=3, among_servers=False),
        Case(comm="hybrid", optimizer="keras_adamw", average_sparse=False, ranks=3),
        Case(comm="sharded", optimizer="keras_amsgrad", user_parts=3, ranks=3),
    ]


def configured_cases() -> list[Case]:
    """Returns cases whose optimizer updates as the group `update` of the configuration says, in every mode."""
    routes: list[dict[str, Any]] = [
        {"comm": "mpi"},
        {"comm": "ps", "partitions": 3},
        {"comm": "hybrid", "partitions": 2, "ranks": 3},
        {"comm": "sharded"},
    ]
    return [
        *(
            Case(**route, model="configured", optimizer=optimizer)
            for route, optimizer in itertools.product(routes, CONFIGURED)
        ),
        Case(comm="sharded", model="configured", optimizer="clip_norm", user_parts=3, ranks=3),
        Case(comm="mpi", model="configured", optimizer="all", reroute=".allreduce", ranks=3),
        Case(comm="ps", model="configured", optimizer="weight_decay", replicas=2, variables="reference"),
        Case(comm="ps", model="configured", optimizer="all", replicate_variables=True, ranks=3),
        Case(comm="sharded", model="configured", optimizer="all", spoilt_step=4),
    ]


def cases_in_parts() -> list[Case]:
    """Returns cases whose steps compute their gradients in several passes, in every mode."""
    return [
        Case(comm="mpi", model="in_2_parts", optimizer="adam", clip=True),
        Case(comm="mpi", model="in_4_parts", optimizer="momentum", ranks=3, reroute=".allreduce"),
        Case(comm="mpi", model="in_4_parts", optimizer="adagrad", use_allgatherv=True),
        Case(comm="ps", model="in_4_parts", optimizer="adam", clip=True, partitions=3, ranks=3),
        Case(comm="ps", model="in_2_parts", optimizer="momentum", replicas=2, partitions=2),
        Case(comm="ps", model="in_2_parts", optimizer="adam", replicate_variables=True, user_parts=3),
        Case(comm="hybrid", model="in_2_parts", optimizer="adam", clip=True, partitions=2, ranks=3),
        Case(comm="hybrid", model="in_4_parts", optimizer="keras_adamw"),
        Case(comm="hybrid", model="in_4_parts", optimizer="keras_adam", spoilt_step=4, ranks=3),
        Case(comm="hybrid", model="in_4_parts", optimizer="adam", spoilt_step=4),
        Case(comm="sharded", model="in_4_parts", optimizer="adam", clip=True),
        Case(comm="sharded", model="in_2_parts", optimizer="momentum", ranks=3, average_sparse=False),
        Case(comm="sharded", model="in_2_parts", optimizer="ftrl", variables="reference", lookahead="off"),
        *(
            Case(comm=comm, model=model, optimizer="adam")
            for comm in ("mpi", "ps", "hybrid", "sharded")
            for model in ("statistics_in_2_parts", "sampled_in_4_parts")
        ),
    ]
