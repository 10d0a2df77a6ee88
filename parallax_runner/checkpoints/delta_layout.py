"""Decides where the changes of all ranks are in the tensors of a delta."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Told:
    """How much a rank tells of a piece of the variable `name`: `count` places, each with a value of `value_bytes`."""

    name: str
    count: int
    value_bytes: int


@dataclass(frozen=True)
class Chunk:
    """A part of what a rank tells of one piece: `count` places, starting with number `first` of its own, which are in
    the delta's tensors from position `begin`. `number` is the position of the piece in the rank's list."""

    number: int
    first: int
    count: int
    begin: int


class Layout:
    """The places of all ranks in a delta: those of a variable one after the other, by rank. `told` has what each rank
    tells. A chunk has about `chunk_bytes`."""

    def __init__(self, told: Sequence[Sequence[Told]], chunk_bytes: int) -> None:
        self.totals: dict[str, int] = defaultdict(int)
        self.chunks: list[list[Chunk]] = []
        self._told = told
        for of_rank in told:
            chunks: list[Chunk] = []
            for number, one in enumerate(of_rank):
                chunks += _chunks(number, one, self.totals[one.name], chunk_bytes)
                self.totals[one.name] += one.count
            self.chunks.append(chunks)

    def name_of(self, rank: int, chunk: Chunk) -> str:
        """Returns the name of the variable to which a chunk of a rank belongs."""
        return self._told[rank][chunk.number].name


def _chunks(number: int, one: Told, begin: int, chunk_bytes: int) -> list[Chunk]:
    at_once = max(1, chunk_bytes // max(1, one.value_bytes))
    return [
        Chunk(number, first, min(at_once, one.count - first), begin + first) for first in range(0, one.count, at_once)
    ]
