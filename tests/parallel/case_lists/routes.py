"""Cases of what each route can do."""

from __future__ import annotations

import dataclasses
import itertools

from tests.parallel.case_lists.short_numbers import compressed_cases
from tests.parallel.cases import OPTIMIZERS, Case


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


def cases_of_both_owners() -> list[Case]:
    """Returns cases in which servers own the rows of one table, and ranks those of the other: every optimizer, and all
    kinds of updates."""
    both = Case(comm="hybrid", reroute="other.alltoall")
    return [
        BOTH_OWNERS,
        *(
            dataclasses.replace(both, optimizer=optimizer, clip=True, ranks=ranks, partitions=partitions)
            for optimizer, ranks, partitions in zip(OPTIMIZERS, itertools.cycle((2, 3)), itertools.cycle((2, 1, 4)))
        ),
        *(
            dataclasses.replace(both, model=model, optimizer=optimizer, ranks=ranks, partitions=2, clip=ranks == 3)
            for model, optimizer, ranks in (
                ("batch_norm", "adam", 3),
                ("decay_after", "adam", 3),
                ("row_decay", "momentum", 2),
                ("padding", "adam", 3),
                ("normalized", "adagrad", 3),
                ("halves", "adam", 2),
            )
        ),
        dataclasses.replace(both, optimizer="momentum", average_sparse=False, gradients="sparse", partitions=3),
        dataclasses.replace(both, optimizer="keras_adam_clipped", ranks=3, partitions=2),
        dataclasses.replace(both, optimizer="keras_adamw", partitions=4),
        dataclasses.replace(both, optimizer="adam", clip=True, partitions=4, uneven=True),
        dataclasses.replace(both, optimizer="adam", clip=True, partitions=4, among_servers=False),
        dataclasses.replace(both, optimizer="adam", clip=True, ranks=3, recuts="4_1", spoilt_step=4),
        Case(comm="hybrid", reroute="table.alltoall", optimizer="adam", clip=True, ranks=3, lookahead="off"),
    ]


# The case of the default tier: a norm of all gradients is added up on servers, by the ranks, and on each rank.
BOTH_OWNERS = Case(comm="hybrid", reroute="other.alltoall", optimizer="adam", clip=True, ranks=3, partitions=2)


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
