"""How a step's time divides; times below are milliseconds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_runner.profile.intervals import length, overlap, union
from parallax_runner.profile.shares import Part, StepShares, shares_of_step, total_by_rank
from tests.single.profile.traced import SERVER, WORKER_0, WORKER_1, timeline

INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)))


def parts_ms(shares: StepShares) -> dict[str, float]:
    assert sum(shares.parts_ns.values()) == shares.span_ns
    return {part.value: ns / 1e6 for part, ns in shares.parts_ns.items() if ns}


@given(INTERVALS, INTERVALS)
def test_intervals_are_the_sets_of_moments_that_they_stand_for(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    def moments(intervals: list[tuple[int, int]]) -> set[int]:
        return {moment for start, end in intervals for moment in range(start, end)}

    assert length(union(one)) == len(moments(one))
    assert overlap(union(one), union(other)) == len(moments(one) & moments(other))


def test_each_moment_counts_once_and_computing_comes_first() -> None:
    (shares,) = shares_of_step(
        [
            timeline(
                (WORKER_0, "a", "MatMul", 0, 4),
                (WORKER_0, "b", "MatMul", 2, 5),
                (WORKER_0, f"8 rows {SERVER}", "RecvTensor", 4, 7),
                (SERVER, "update", "ResourceApplyAdagrad", 6, 9),
                (SERVER, "done", "QueueDequeueV2", 1, 10),
                (WORKER_0, "c", "Add", 11, 12),
            )
        ]
    )
    assert parts_ms(shares) == {"compute": 6, "communication": 2, "servers": 2, "waiting": 1, "idle": 1}
    assert shares.span_ns == 12e6
    assert (shares.communication_ns, shares.hidden_ns) == (3e6, 1e6)
    assert shares.share(Part.COMPUTE) == 0.5


def test_till_a_rank_has_pushed_its_gradients_it_does_not_wait_for_others() -> None:
    (shares,) = shares_of_step(
        [
            timeline(
                (SERVER, "take", "SparseAccumulatorTakeGradient", 0, 10),
                (WORKER_0, "a", "MatMul", 2, 4),
                (SERVER, "push", "SparseAccumulatorApplyGradient", 5, 6),
            )
        ]
    )
    assert parts_ms(shares) == {"compute": 2, "communication": 1, "waiting": 4, "idle": 3}


def test_in_a_collective_the_first_to_come_waits_for_the_last() -> None:
    early = timeline((WORKER_0, "sum", "HorovodAllreduce", 1, 10), (WORKER_0, "a", "Add", 0, 1), rank=0)
    late = timeline((WORKER_1, "a", "Add", 0, 7), (WORKER_1, "sum", "HorovodAllreduce", 7, 10), rank=1)
    first, last = shares_of_step([early, late])
    assert parts_ms(first) == {"compute": 1, "waiting": 6, "communication": 3}
    assert parts_ms(last) == {"compute": 7, "communication": 3}
    # Who knows of no other rank cannot tell.
    assert parts_ms(shares_of_step([early])[0]) == {"compute": 1, "communication": 9}


def test_calls_of_one_collective_in_a_loop_are_told_apart() -> None:
    calls = [
        timeline(
            (worker, "sum", "HorovodAllreduce", 0 + rank, 3),
            (worker, "sum", "HorovodAllreduce", 4 + rank, 7),
            rank=rank,
        )
        for rank, worker in enumerate((WORKER_0, WORKER_1))
    ]
    first, _ = shares_of_step(calls)
    assert parts_ms(first) == {"waiting": 2, "communication": 4, "idle": 1}


def test_steps_of_a_rank_are_added() -> None:
    steps = [timeline((WORKER_0, "a", "Add", 0, end), step=step) for step, end in ((3, 1), (5, 2))]
    (total,) = total_by_rank(shares for step in steps for shares in shares_of_step([step]))
    assert (total.rank, total.steps, total.span_ns) == (0, (3, 5), 3e6)
    assert total.share(Part.COMPUTE) == pytest.approx(1)
