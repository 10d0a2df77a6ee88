"""Determines for many ops at once which marked ops they depend on.

The ancestors of a single op take a traversal of the graph, so traversals for op after op take quadratic time. Here each
op passes its marks on to the ops that read it, in one pass over the graph in topological order. Marks are the bits of
an int.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from parallax_runner.graph import edit
from parallax_runner.graph.edit import LOOP_OPS, Op

T = TypeVar("T")


def marks_behind(
    ops: Collection[Op],
    marked: Mapping[Op, int],
    *,
    stop_at: frozenset[str] = frozenset(),
    control: bool = True,
) -> dict[Op, int]:
    """Returns, for each op, the union of its own marks and the marks of all ops on which it depends.

    Only paths through `ops` count, and only if they avoid the tensors named in `stop_at`. Without `control`, only paths
    along data edges count.
    """
    ordered = edit.in_order(set(ops))
    needs = {op: _needs(op, stop_at, control=control) for op in ordered}
    found = {op: marked.get(op, 0) for op in ordered}
    # The back edge of a loop leads against the order, so its marks arrive in the next pass.
    has_loops = any(op.type in LOOP_OPS for op in ordered)
    while _pass_on(ordered, needs, found) and has_loops:
        pass
    return found


def bits_of(values: Iterable[T]) -> dict[T, int]:
    """Returns a bit for each distinct value."""
    return {value: 1 << number for number, value in enumerate(dict.fromkeys(values))}


def positions(marks: int) -> Iterator[int]:
    """Yields the positions of the set bits, the lowest first."""
    while marks:
        lowest = marks & -marks
        yield lowest.bit_length() - 1
        marks ^= lowest


def _needs(op: Op, stop_at: frozenset[str], *, control: bool) -> list[Op]:
    needs = [tensor.op for tensor in op.inputs if not stop_at or tensor.name not in stop_at]
    return [*needs, *op.control_inputs] if control else needs


def _pass_on(ordered: list[Op], needs: Mapping[Op, list[Op]], found: dict[Op, int]) -> bool:
    """Adds to the marks of each op the marks of its needs. Returns whether a mark was added."""
    has_changed = False
    for op in ordered:
        marks = before = found[op]
        for need in needs[op]:
            marks |= found.get(need, 0)
        if marks != before:
            found[op] = marks
            has_changed = True
    return has_changed
