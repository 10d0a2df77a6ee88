"""Cases of the devices that a model names, and of the places of ops beside the variables of servers."""

from __future__ import annotations

from tests.parallel.cases import Case


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
