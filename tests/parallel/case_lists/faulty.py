"""Cases whose fault the comparison must find."""

from __future__ import annotations

from tests.parallel.cases import Case

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
