"""Cases with values, variables or products of 16 bits."""

from __future__ import annotations

import itertools
from typing import Any

from tests.parallel.cases import Case


def compressed_cases() -> list[Case]:
    """Returns cases with values that travel in 16 bits."""
    return [
        *(
            Case(comm=comm, compression=compression, optimizer="momentum", partitions=4, ranks=ranks)
            for comm, compression, ranks in (
                ("mpi", "fp16", 2),
                ("ps", "bf16", 2),
                ("hybrid", "fp16", 3),
                ("sharded", "bf16", 3),
                ("sharded", "fp16", 2),
            )
        ),
        Case(comm="sharded", compression="bf16", optimizer="adam"),
        Case(comm="mpi", compression="fp16", model="deep", optimizer="momentum", ranks=3),
        Case(comm="mpi", compression="bf16", optimizer="momentum", reroute=".allreduce"),
        Case(comm="mpi", compression="fp16", optimizer="momentum", use_allgatherv=True),
        Case(comm="ps", compression="fp16", optimizer="momentum", partitions=4, replicas=2),
        Case(comm="ps", compression="bf16", optimizer="momentum", replicas=2, local_aggregation=False),
        Case(comm="ps", compression="fp16", optimizer="momentum", replicate_variables=True),
        Case(comm="ps", compression="fp16", optimizer="momentum", splits_dense=True),
    ]


def short_cases() -> list[Case]:
    """Returns cases with 16-bit variables on every route."""
    return [
        *(
            Case(**route, model="bfloat16", optimizer=optimizer, clip=optimizer == "adagrad")
            for optimizer, route in zip(
                itertools.cycle(("momentum", "gradient_descent", "adagrad")),
                (
                    {"comm": "mpi"},
                    {"comm": "mpi", "reroute": ".allreduce", "average_sparse": False},
                    {"comm": "mpi", "use_allgatherv": True},
                    {"comm": "ps", "partitions": 3},
                    # The mean over four replicas would change a table by little more than the rounding of its dtype.
                    {"comm": "ps", "replicas": 2, "average_sparse": False},
                    {"comm": "hybrid", "partitions": 2, "ranks": 3, "spoilt_step": 4},
                    {"comm": "sharded", "ranks": 3},
                ),
                strict=False,
            )
        ),
        *(Case(comm=comm, model="float16", optimizer="momentum") for comm in ("mpi", "ps", "hybrid", "sharded")),
    ]


def cases_with_short_products() -> list[Case]:
    """Returns cases whose products are computed in bfloat16, in every mode on two and on three ranks."""
    routes: list[dict[str, Any]] = [
        {"comm": "mpi"},
        {"comm": "ps", "partitions": 3},
        {"comm": "hybrid", "partitions": 2},
        {"comm": "sharded"},
    ]
    return [
        *(
            Case(**route, model="short_products", optimizer="adam" if ranks == 2 else "momentum", ranks=ranks)
            for route, ranks in itertools.product(routes, (2, 3))
        ),
        *(Case(**route, model="short_products_in_2_parts", optimizer="adagrad") for route in routes),
        Case(comm="ps", model="short_products", replicas=2, optimizer="adagrad", between=False),
        Case(comm="ps", model="short_products", optimizer="adagrad", clip=True, replicate_variables=True),
        Case(comm="hybrid", model="short_products", optimizer="keras_adamw", ranks=3, spoilt_step=4),
    ]
