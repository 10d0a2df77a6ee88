"""The equivalence matrix: which cases run."""

from __future__ import annotations

from tests.parallel import traced_cases
from tests.parallel.case_lists.devices import device_cases, placed_cases
from tests.parallel.case_lists.faulty import faulty_cases
from tests.parallel.case_lists.pairs import AXES, full_column, pairwise
from tests.parallel.case_lists.routes import (
    cases_of_both_owners,
    densified_cases,
    lookahead_cases,
    recut_cases,
    replicated_cases,
    sharded_cases,
    split_cases,
    uneven_cases,
)
from tests.parallel.case_lists.short_numbers import cases_with_short_products, compressed_cases, short_cases
from tests.parallel.case_lists.steps import (
    accumulated_cases,
    cases_in_parts,
    chained_cases,
    configured_cases,
    joined_cases,
    keras_cases,
    table_cases,
)
from tests.parallel.cases import Case


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
        *cases_of_both_owners(),
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


MATRIX = list(dict.fromkeys(pairwise(AXES) + full_column() + special_cases()))
FAULTY = faulty_cases()
COMPRESSED = compressed_cases()
SHORT = short_cases()
TRACED = [Case(**fields) for fields in traced_cases.every()]
TRACED_FAULTY = [Case(**fields) for fields in traced_cases.faulty()]
TRACED_SHORT = [Case(**fields) for fields in traced_cases.short()]


GRAPHS = [*MATRIX, *FAULTY, *COMPRESSED, *SHORT]
EVERY = [*GRAPHS, *TRACED, *TRACED_SHORT, *TRACED_FAULTY]
