"""The cases of the default tier. All others are slow tests, whose names begin with «more-» (tests/slow.toml)."""

from __future__ import annotations

from tests.parallel import traced_cases
from tests.parallel.case_lists.faulty import FAULTS
from tests.parallel.case_lists.routes import BOTH_OWNERS
from tests.parallel.cases import Case

# The planted faults of Keras models and steps in the default tier.
TRACED_FAULTS = ("dropped_dependency", "unmerged_slices")
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
        BOTH_OWNERS,
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
        *(Case(**fields) for fields in traced_cases.faulty() if fields["fault"] in TRACED_FAULTS),
    }
)
