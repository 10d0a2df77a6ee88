"""The equivalence matrix: which cases run."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from tests.parallel import traced_cases
from tests.parallel.cases import KERAS, OPTIMIZERS, Case
from tests.parallel.configured import CONFIGURED

AXES: dict[str, tuple[Any, ...]] = {
    "comm": ("mpi", "ps", "hybrid", "sharded"),
    "optimizer": tuple(OPTIMIZERS),
    "gradients": ("dense", "sparse", "both"),
    "clip": (False, True),
    "ranks": (2, 3),
    "partitions": (1, 4),
    "variables": ("resource", "reference"),
    "user_parts": (1, 3),
    "average_sparse": (True, False),
}


def pairwise(axes: dict[str, tuple[Any, ...]]) -> list[Case]:
    """Returns cases that contain every pair of values of any two axes, chosen greedily (Cohen and others 1997,
    AETG)."""
    names = list(axes)
    wanted = {
        ((first, a), (second, b))
        for first, second in itertools.combinations(names, 2)
        for a in axes[first]
        for b in axes[second]
    }
    cases = []
    while wanted:
        chosen = dict(min(wanted, key=repr))
        for name in names:
            if name not in chosen:
                gains = [len(_covered(chosen | {name: value}, wanted)) for value in axes[name]]
                chosen[name] = axes[name][gains.index(max(gains))]
        wanted -= _covered(chosen, wanted)
        cases.append(Case(**chosen))
    return cases


def _covered(chosen: dict[str, Any], wanted: set) -> set:
    return {pair for pair in wanted if all(name in chosen and chosen[name] == value for name, value in pair)}


def full_column() -> list[Case]:
    """Returns cases of hybrid on two ranks: every optimizer × kind of gradient × clipping, four partitions."""
    return [
        Case(optimizer=optimizer, gradients=gradients, clip=clip, partitions=4)
        for optimizer, gradients, clip in itertools.product(OPTIMIZERS, ("dense", "sparse", "both"), (False, True))
    ]


def special_cases() -> list[Case]:
    """Returns models that do more than gradients."""
    return [
        Case(comm=comm, model=model, ranks=ranks, optimizer=optimizer, clip=True, partitions=4)
        for comm, ranks, optimizer in (
            ("mpi", 2, "adam"),
            ("ps", 3, "adam"),
            ("hybrid", 3, "momentum"),
            ("sharded", 3, "adam"),
        )
        for model in ("batch_norm", "random", "decay_after", "row_decay")
    ] + [
        Case(model="function", clip=True),
        *(Case(comm=comm, model="padding", ranks=3, partitions=4, clip=True) for comm in ("hybrid", "ps")),
        *chained_cases(),
        *accumulated_cases(),
        *joined_cases(),
        *replicated_cases(),
        *placed_cases(),
        *device_cases(),
        *densified_cases(),
        *sharded_cases(),
        *recut_cases(),
        *lookahead_cases(),
        *split_cases(),
        *keras_cases(),
        *configured_cases(),
        *cases_in_parts(),
        *cases_with_short_products(),
        *uneven_cases(),
        *table_cases(),
        *(Case(comm=comm, model="unseeded", ranks=ranks) for comm, ranks in (("mpi", 3), ("hybrid", 2))),
        Case(comm="sharded", model="unseeded"),
        Case(model="function", clip=True, use_allgatherv=True),
        Case(comm="mpi", gradients="sparse", use_allgatherv=True),
        Case(comm="mpi", gradients="sparse", ranks=3, user_parts=3, average_sparse=False, use_allgatherv=True),
        Case(comm="mpi", optimizer="adam", ranks=3, clip=True, use_allgatherv=True),
        Case(comm="mpi", optimizer="adam", clip=True, spoilt_step=4),
        Case(comm="ps", ranks=3, optimizer="momentum", partitions=4, spoilt_step=4),
        Case(comm="hybrid", ranks=3, optimizer="adam", clip=True, partitions=4, spoilt_step=4),
    ]


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


def uneven_cases() -> list[Case]:
    """Returns cases whose ranks have different numbers of examples, in some steps none, on every route."""
    return [
        Case(comm="mpi", optimizer="adam", clip=True, uneven=True),
        Case(comm="mpi", ranks=3, optimizer="momentum", reroute=".allreduce", average_sparse=False, uneven=True),
        Case(comm="mpi", ranks=3, optimizer="adagrad", use_allgatherv=True, uneven=True),
        Case(comm="ps", ranks=3, optimizer="adam", partitions=4, clip=True, uneven=True),
        Case(comm="ps", replicas=2, optimizer="momentum", partitions=3, uneven=True),
        Case(comm="ps", replicas=2, optimizer="adagrad", local_aggregation=False, uneven=True),
        Case(comm="ps", optimizer="adam", replicate_variables=True, uneven=True),
        Case(comm="hybrid", optimizer="adam", partitions=4, clip=True, uneven=True),
        Case(comm="hybrid", ranks=3, optimizer="keras_adamw", partitions=2, uneven=True),
        Case(comm="sharded", optimizer="adam", clip=True, uneven=True),
        Case(comm="sharded", ranks=3, optimizer="keras_adam_clipped", partitions=4, uneven=True),
        Case(comm="sharded", ranks=3, optimizer="momentum", lookahead="off", average_sparse=False, uneven=True),
        Case(comm="sharded", optimizer="adam", spoilt_step=4, uneven=True),
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


def recut_cases() -> list[Case]:
    """Returns cases that recut variables between steps."""
    return [
        *(
            Case(comm=comm, optimizer=optimizer, clip=True, ranks=ranks, partitions=1, recuts="4_3_1")
            for optimizer, comm, ranks in zip(OPTIMIZERS, itertools.cycle(("hybrid", "ps")), itertools.cycle((2, 3, 3)))
        ),
        Case(optimizer="adam", model="batch_norm", ranks=3, partitions=4, recuts="2_5"),
        Case(comm="ps", optimizer="momentum", model="decay_after", user_parts=3, partitions=3, recuts="6_1"),
        Case(comm="ps", replicas=2, optimizer="adam", clip=True, partitions=4, recuts="2_3", replicate_variables=True),
        Case(optimizer="adam", ranks=3, clip=True, partitions=2, recuts="4_4_13", spoilt_step=4),
    ]


def sharded_cases() -> list[Case]:
    """Returns cases with rows owned by ranks: every optimizer beside the pairs of axes, and all kinds of updates."""
    return [
        *(
            Case(comm="sharded", optimizer=optimizer, clip=True, ranks=ranks)
            for optimizer, ranks in zip(OPTIMIZERS, itertools.cycle((2, 3)))
        ),
        Case(comm="sharded", optimizer="momentum"),
        Case(comm="sharded", model="function", ranks=3),
        Case(comm="sharded", model="padding", ranks=3, optimizer="adam", clip=True),
        Case(comm="sharded", model="two_waves", ranks=3, optimizer="momentum"),
        Case(comm="sharded", model="normalized", ranks=3, optimizer="adagrad"),
        Case(comm="sharded", model="mixed", optimizer="rmsprop"),
        Case(comm="sharded", model="decay_after", optimizer="adam", clip=True, ranks=3),
        Case(comm="sharded", model="row_decay", optimizer="momentum", ranks=3),
        Case(comm="sharded", gradients="sparse", user_parts=3, average_sparse=False, optimizer="adam"),
        Case(comm="sharded", optimizer="ftrl", clip=True, variables="reference", spoilt_step=4),
        Case(comm="sharded", model="halves", optimizer="adam"),
        Case(comm="sharded", optimizer="adam", clip=True, ranks=3, spoilt_step=4),
        *(dataclasses.replace(case, compression="off") for case in compressed_cases()[:4]),
    ]


def lookahead_cases() -> list[Case]:
    """Returns cases that fetch rows one step in advance: none, some or all rows wait for an update, and ids may be
    random. Cases of hybrid, which fetches no rows in advance, have random ids too."""
    return [
        *(
            Case(comm="sharded", model=model, optimizer=optimizer, ranks=ranks, rows=rows)
            for model, rows, ranks, optimizer in (
                ("plain", "none", 2, "momentum"),
                ("plain", "all", 2, "adagrad"),
                ("plain", "none", 3, "adagrad"),
                ("plain", "all", 3, "rmsprop"),
                ("sampled", "some", 2, "adagrad"),
                ("sampled", "none", 3, "momentum"),
            )
        ),
        Case(comm="sharded", model="sampled", lookahead="off"),
        Case(
            comm="sharded", model="sampled", optimizer="gradient_descent", clip=True, average_sparse=False, rows="none"
        ),
        Case(comm="sharded", model="sampled", optimizer="momentum", user_parts=3),
        Case(comm="sharded", optimizer="momentum", ranks=3, clip=True, rows="none", spoilt_step=4),
        Case(comm="hybrid", model="sampled", optimizer="adagrad", partitions=2),
        Case(comm="hybrid", model="sampled", optimizer="momentum", ranks=3, partitions=2),
        Case(comm="hybrid", model="sampled", optimizer="gradient_descent", clip=True),
        Case(comm="hybrid", model="sampled", optimizer="momentum", user_parts=3),
    ]


def split_cases() -> list[Case]:
    """Returns cases with dense variables in several shards on servers."""
    ps = {"comm": "ps", "splits_dense": True}
    return [
        *(
            Case(**ps, optimizer=optimizer, clip=True, ranks=ranks)
            for optimizer, ranks in zip(OPTIMIZERS, itertools.cycle((2, 3)))
        ),
        Case(**ps, optimizer="adam", model="decay_after", ranks=3, partitions=4),
        Case(**ps, optimizer="momentum", gradients="dense", spoilt_step=4),
        Case(**ps, optimizer="adam", model="halves", clip=True),
        Case(**ps, optimizer="adam", replicas=2, clip=True, replicate_variables=True),
        Case(**ps, optimizer="adagrad", replicas=2, local_aggregation=False),
        Case(**ps, optimizer="adam", clip=True, among_servers=False),
        Case(**ps, optimizer="adam", clip=True, partitions=1, recuts="4_3"),
        Case(**ps, optimizer="momentum", gradients="dense", user_parts=3),
    ]


def replicated_cases() -> list[Case]:
    """Returns cases with several replicas in one process, and one or more processes."""
    two = {"comm": "ps", "replicas": 2, "partitions": 4}
    return [
        Case(**two, optimizer="adam", clip=True),
        Case(**two, optimizer="momentum", ranks=3, average_sparse=False),
        Case(**two, optimizer="adagrad", variables="reference", clip=True),
        Case(**two, optimizer="rmsprop", user_parts=3),
        Case(**two, optimizer="adam", model="batch_norm"),
        Case(**two, optimizer="adam", model="random", clip=True),
        Case(**two, optimizer="momentum", model="decay_after", ranks=3),
        Case(**two, optimizer="ftrl", model="row_decay"),
        Case(**two, optimizer="gradient_descent", model="loop"),
        Case(**two, optimizer="adam", clip=True, spoilt_step=4),
        Case(comm="ps", replicas=3, gradients="dense", optimizer="adam"),
        Case(**two, optimizer="adam", clip=True, local_aggregation=False),
        Case(**two, optimizer="momentum", ranks=3, average_sparse=False, local_aggregation=False),
    ]


def densified_cases() -> list[Case]:
    """Returns cases with sparse gradients by allreduce; rows that no rank touches must stay unchanged, including
    slots."""
    return [
        *(
            Case(comm="mpi", optimizer=optimizer, clip=ranks == 2, ranks=ranks, reroute=".allreduce")
            for optimizer, ranks in zip(OPTIMIZERS, itertools.cycle((2, 3)))
        ),
        Case(comm="mpi", optimizer="momentum", gradients="sparse", average_sparse=False, reroute=".allreduce"),
        Case(comm="mpi", optimizer="adam", ranks=3, user_parts=3, reroute="part_1.allreduce"),
        Case(comm="mpi", optimizer="adagrad", variables="reference", ranks=3, clip=True, reroute=".allreduce"),
        Case(comm="mpi", optimizer="momentum", model="row_decay", clip=True, reroute=".allreduce"),
        Case(comm="mpi", optimizer="adam", clip=True, ranks=3, spoilt_step=4, reroute=".allreduce"),
        Case(optimizer="adam", ranks=3, partitions=4, clip=True, reroute="table.allreduce"),
        Case(optimizer="momentum", partitions=4, reroute="other.allreduce"),
        Case(optimizer="rmsprop", model="function", reroute="inner.allreduce"),
        # A mixture of routes that comm=auto may choose.
        Case(comm="sharded", optimizer="adam", ranks=3, clip=True, reroute="other.allreduce"),
        Case(comm="sharded", optimizer="momentum", clip=True, reroute="table.allgather"),
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


def placed_cases() -> list[Case]:
    """Returns cases with ops around the servers' variables on either side."""
    two = {"comm": "ps", "replicas": 2, "replicate_variables": True}
    return [
        Case(comm="ps", optimizer="adam", clip=True, replicate_variables=True),
        Case(comm="ps", gradients="dense", ranks=3, model="decay_after", replicate_variables=True),
        Case(comm="ps", optimizer="momentum", clip=True, spoilt_step=4, replicate_variables=True),
        Case(**two, optimizer="adam", clip=True),
        Case(**two, optimizer="momentum", ranks=3, model="batch_norm", variables="reference"),
        *(Case(**{**two, "replicate_variables": copies}, gradients="dense", clip=True) for copies in (True, False)),
        *(Case(comm="ps", model="mixed", partitions=4, between=between) for between in (True, False)),
        Case(**two, model="mixed", optimizer="adam"),
        *(Case(comm=comm, model="declared", optimizer="adam") for comm in ("mpi", "ps", "hybrid", "sharded")),
        Case(comm="ps", model="declared", optimizer="momentum", ranks=3, replicas=2),
        Case(comm="hybrid", model="mixed", optimizer="adam", clip=True),
        Case(comm="ps", optimizer="adam", clip=True, partitions=4),
        *(Case(comm=comm, optimizer="adam", clip=True, partitions=4, between=False) for comm in ("ps", "hybrid")),
        Case(comm="ps", ranks=3, user_parts=3, variables="reference", average_sparse=False, between=False),
        Case(**two, optimizer="rmsprop", between=False, among_servers=False),
        *(Case(comm=comm, optimizer="adam", clip=True, partitions=4, among_servers=False) for comm in ("ps", "hybrid")),
        Case(comm="ps", ranks=3, optimizer="ftrl", model="row_decay", clip=True, partitions=4, among_servers=False),
        Case(comm="ps", optimizer="momentum", variables="reference", user_parts=3, clip=True, among_servers=False),
        Case(comm="hybrid", optimizer="adam", partitions=4, clip=True, spoilt_step=4, among_servers=False),
    ]


def device_cases() -> list[Case]:
    """Returns cases whose models name devices, of each worker or of the cluster's tasks."""
    return [
        Case(comm="mpi", model="deep", gradients="dense", optimizer="adam", ranks=3),
        Case(comm="hybrid", model="deep", optimizer="momentum", ranks=3, clip=True),
        Case(comm="sharded", model="deep", optimizer="adagrad", ranks=2),
        Case(comm="mpi", model="halves", optimizer="adam", clip=True),
        Case(comm="ps", model="halves", optimizer="adam", ranks=3, clip=True, partitions=4),
        Case(comm="ps", model="halves", replicas=2, optimizer="momentum", replicate_variables=True),
        Case(comm="hybrid", model="halves", optimizer="adam", clip=True, partitions=4),
        Case(comm="ps", model="on_tasks", optimizer="adam", clip=True),
        Case(comm="hybrid", model="on_tasks", optimizer="momentum", ranks=3, partitions=4),
    ]


# Faults of a step that prepares the next one (tests/parallel/lookahead_faults.py).
LOOKAHEAD_FAULTS = ("rows_before_their_update", "draws_made_twice")
FAULTS = ("divide_twice", "drop_a_rank", "clip_before_aggregating", "data_of_rank_0")


def faulty_cases() -> list[Case]:
    """Returns cases whose fault the comparison must find."""
    # Clipping would hide a division: the clipped gradient has the same norm before and after it.
    return [
        Case(comm=comm, clip=fault == "clip_before_aggregating", fault=fault)
        for comm in ("mpi", "ps", "hybrid", "sharded")
        for fault in FAULTS
    ] + [
        *(Case(comm="ps", replicas=2, clip=fault == "clip_before_aggregating", fault=fault) for fault in FAULTS),
        *(Case(comm="sharded", model="sampled", fault=fault) for fault in LOOKAHEAD_FAULTS),
    ]


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


MATRIX = list(dict.fromkeys(pairwise(AXES) + full_column() + special_cases()))
FAULTY = faulty_cases()
COMPRESSED = compressed_cases()
SHORT = short_cases()
TRACED = [Case(**fields) for fields in traced_cases.every()]
TRACED_FAULTY = [Case(**fields) for fields in traced_cases.faulty()]
TRACED_SHORT = [Case(**fields) for fields in traced_cases.short()]


GRAPHS = [*MATRIX, *FAULTY, *COMPRESSED, *SHORT]
EVERY = [*GRAPHS, *TRACED, *TRACED_SHORT, *TRACED_FAULTY]
# The cases of the default tier. All others are slow tests, whose names begin with «more-» (tests/slow.toml).
BASIC = frozenset(
    {
        # One of each mode, and of the models whose ops tests inspect.
        Case(partitions=4),
        Case(comm="sharded"),
        Case(comm="mpi", model="halves", optimizer="adam", clip=True),
        Case(comm="hybrid", model="halves", optimizer="adam", clip=True, partitions=4),
        Case(comm="ps", model="on_tasks", optimizer="adam", clip=True),
        # Three ranks: rows owned by ranks, and variables that are recut, with a step that is left out.
        Case(comm="sharded", model="two_waves", ranks=3, optimizer="momentum"),
        Case(optimizer="adam", ranks=3, clip=True, partitions=2, recuts="4_4_13", spoilt_step=4),
        # Pairs whose ops tests compare.
        *(
            Case(comm="ps", replicas=2, optimizer="adam", clip=True, partitions=4, local_aggregation=each)
            for each in (True, False)
        ),
        *(
            Case(comm="ps", replicas=2, gradients="dense", clip=True, replicate_variables=each)
            for each in (True, False)
        ),
        *(Case(comm="ps", optimizer="adam", clip=True, partitions=4, among_servers=each) for each in (True, False)),
        *(Case(comm="ps", model="mixed", partitions=4, between=each) for each in (True, False)),
        # Ranks with different numbers of examples, in some steps none.
        Case(comm="hybrid", optimizer="adam", partitions=4, clip=True, uneven=True),
        Case(comm="ps", optimizer="adam", replicate_variables=True, uneven=True),
        Case(**traced_cases.UNEVEN),
        # A loss that is divided by a number of all ranks.
        Case(**traced_cases.DIVIDED),
        Case(**traced_cases.SUMMED),
        # One of each other test: buckets of gradients, Keras' formulas, values that travel in 16 bits, and variables of
        # 16 bits.
        Case(comm="sharded", model="deep"),
        Case(optimizer="keras_adamw", partitions=4),
        Case(comm="mpi", compression="bf16", optimizer="momentum", reroute=".allreduce"),
        Case(comm="mpi", model="bfloat16", optimizer="momentum"),
        # Updates as the configuration says.
        Case(comm="mpi", model="configured", optimizer="clip_norm"),
        Case(comm="ps", model="configured", optimizer="all", partitions=3),
        Case(comm="hybrid", model="configured", optimizer="all", partitions=2, ranks=3),
        Case(comm="sharded", model="configured", optimizer="all"),
        # Steps in several passes.
        Case(comm="ps", model="in_4_parts", optimizer="adam", clip=True, partitions=3, ranks=3),
        Case(comm="sharded", model="in_4_parts", optimizer="adam", clip=True),
        # Products in 16 bits.
        Case(comm="ps", model="short_products", optimizer="adam", partitions=3),
        Case(comm="sharded", model="short_products", optimizer="momentum", ranks=3),
        # Sparse gradients that are not averaged.
        Case(comm="mpi", optimizer="momentum", gradients="sparse", average_sparse=False, reroute=".allreduce"),
        *(Case(**fields) for fields in traced_cases.BASIC),
        # One of each kind of fault.
        *(Case(comm="mpi", clip=fault == "clip_before_aggregating", fault=fault) for fault in FAULTS),
        Case(comm="sharded", model="sampled", fault="rows_before_their_update"),
        *(case for case in TRACED_FAULTY if case.fault in ("dropped_dependency", "unmerged_slices")),
    }
)
