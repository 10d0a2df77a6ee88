"""Divides a step's time on each rank into computation, communication, servers' work, waiting and idle time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from parallax_runner.profile.intervals import Intervals, length, overlap, union
from parallax_runner.profile.op_classes import OpClass
from parallax_runner.profile.timeline import Op, StepTimeline


class Part(Enum):
    """The parts of a step's time. A moment belongs to the first part in this list that has a traced op running at that
    moment."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    SERVERS = "servers"
    WAITING = "waiting"
    IDLE = "idle"


MEANING = {
    Part.COMPUTE: "the rank itself is running an op",
    Part.COMMUNICATION: "otherwise, a collective that all ranks have reached, or a transfer to or from a server",
    Part.SERVERS: "otherwise, a server is running an op for the rank",
    Part.WAITING: "otherwise, a collective is waiting for another rank, or, after the rank has pushed all its "
    "gradients, an op on a server is waiting for other ranks' gradients or for the signal that the step is done",
    Part.IDLE: "the remaining time, in which no op was traced: for example, a call is in transit or the "
    "scheduler is running",
}


@dataclass(frozen=True)
class StepShares:
    """The shares of one or more steps on one rank.

    The values of `parts_ns` add up to `span_ns`, which is the time from the first op's start to the last op's end.
    `communication_ns` is the total time during which any communication was in progress. `hidden_ns` is the part of
    `communication_ns` that overlaps with the rank's own computation.
    """

    rank: int
    steps: tuple[int, ...]
    span_ns: int
    parts_ns: Mapping[Part, int]
    communication_ns: int
    hidden_ns: int

    def share(self, part: Part) -> float:
        """Returns the fraction of the span that a part takes, from 0 to 1."""
        return self.parts_ns[part] / self.span_ns if self.span_ns else 0.0


def shares_of_step(timelines: Iterable[StepTimeline]) -> list[StepShares]:
    """Returns the shares of each rank, from the available timelines of one step.

    Uses the times from all ranks' clocks to determine when the last rank reached a collective. With a single rank, the
    whole time of a collective counts as communication.
    """
    timelines = list(timelines)
    complete = _complete_at(timelines)
    return [_shares(timeline, complete) for timeline in timelines]


def total_by_rank(shares: Iterable[StepShares]) -> list[StepShares]:
    """Sums the shares of each rank over all its steps. Returns the sums in rank order."""
    by_rank: dict[int, list[StepShares]] = defaultdict(list)
    for one in shares:
        by_rank[one.rank].append(one)
    return [
        StepShares(
            rank=rank,
            steps=tuple(step for one in own for step in one.steps),
            span_ns=sum(one.span_ns for one in own),
            parts_ns={part: sum(one.parts_ns[part] for one in own) for part in Part},
            communication_ns=sum(one.communication_ns for one in own),
            hidden_ns=sum(one.hidden_ns for one in own),
        )
        for rank, own in sorted(by_rank.items())
    ]


# Identifies a call of a collective on all ranks, by the collective's name and the number of earlier calls of that name
# in the step.
_Call = tuple[str, int]


def _collectives(timeline: StepTimeline) -> Iterator[tuple[_Call, Op]]:
    calls: Counter[str] = Counter()
    for op in timeline.ops:
        if op.is_collective:
            yield (op.name, calls[op.name]), op
            calls[op.name] += 1


def _complete_at(timelines: Iterable[StepTimeline]) -> dict[_Call, int]:
    """Returns the time when the last rank reached each collective. Until that time, the collective only waits."""
    latest: dict[_Call, int] = {}
    for timeline in timelines:
        for call, op in _collectives(timeline):
            latest[call] = max(latest.get(call, op.start_ns), op.start_ns)
    return latest


def _shares(timeline: StepTimeline, complete: Mapping[_Call, int]) -> StepShares:
    busy: dict[Part, Intervals] = {part: [] for part in Part}
    pushed_ns = max((op.end_ns for op in timeline.ops if op.is_push), default=timeline.start_ns)
    for op in timeline.ops:
        if not op.is_collective:
            part = _part_of(op)
            # A waiting op on a server starts when the step begins, and waits for a result that comes at the step's end.
            # But the rank does not wait for other ranks until it has pushed its own gradients.
            is_for_others = part is Part.WAITING and op.process.is_server
            busy[part].append((max(op.start_ns, pushed_ns) if is_for_others else op.start_ns, op.end_ns))
    for call, op in _collectives(timeline):
        begins = min(max(complete[call], op.start_ns), op.end_ns)
        busy[Part.WAITING].append((op.start_ns, begins))
        busy[Part.COMMUNICATION].append((begins, op.end_ns))
    span_ns = timeline.end_ns - timeline.start_ns
    parts_ns: dict[Part, int] = {}
    covered: Intervals = []
    for part in Part:
        grown = union([*covered, *busy[part]])
        parts_ns[part] = length(grown) - length(covered)
        covered = grown
    parts_ns[Part.IDLE] = span_ns - length(covered)
    communication = union(busy[Part.COMMUNICATION])
    return StepShares(
        rank=timeline.rank,
        steps=(timeline.step,),
        span_ns=span_ns,
        parts_ns=parts_ns,
        communication_ns=length(communication),
        hidden_ns=overlap(communication, union(busy[Part.COMPUTE])),
    )


def _part_of(op: Op) -> Part:
    if op.op_class is OpClass.COMPUTE:
        return Part.SERVERS if op.process.is_server else Part.COMPUTE
    return Part.COMMUNICATION if op.op_class is OpClass.COMMUNICATION else Part.WAITING
