"""Cuts variables that are spread over ranks into blocks of consecutive rows, and brings the rows of a block together.

Row i is on rank i mod ranks, but TensorFlow can only describe consecutive rows of a variable in a file. So each block
has a writer, to which all ranks send their rows of the block. Ranks exchange rows in rounds. A round has as many blocks
as there are writers, and its blocks of a variable follow each other. So a rank sends consecutive rows of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# The size of a block, and of what a rank sends in a round. Collectives of steps can run between two rounds.
BLOCK_BYTES = 16 << 20
# TensorFlow copies an array that does not begin at a multiple of so many bytes.
_ALIGNED_BYTES = 64


@dataclass(frozen=True)
class Spread:
    """The rows of a variable that is spread over ranks. If `is_divisible` is false, the variable is one block, because
    TensorFlow cannot read slices of its dtype."""

    rows: int
    row_bytes: int
    is_divisible: bool = True

    def block_rows(self, block_bytes: int = BLOCK_BYTES) -> int:
        """Returns the number of rows in each block except the last, which may have fewer."""
        if not self.is_divisible:
            return max(1, self.rows)
        return max(1, block_bytes // max(1, self.row_bytes))


@dataclass(frozen=True)
class Block:
    """The `rows` consecutive rows, starting with row `first`, of the variable at position `variable` in a list. The
    rank `writer` writes them."""

    variable: int
    first: int
    rows: int
    writer: int

    def places(self, rank: int, ranks: int) -> range:
        """Returns the positions of the block's rows among the own rows of `rank`."""
        return range(_rows_before(self.first, rank, ranks), _rows_before(self.first + self.rows, rank, ranks))

    def rows_of(self, rank: int, ranks: int) -> slice:
        """Returns the positions in the block of the rows of `rank`."""
        return slice((rank - self.first) % ranks, None, ranks)


def _rows_before(row: int, rank: int, ranks: int) -> int:
    """Returns how many of the rows before `row` are on `rank`."""
    return len(range(rank, row, ranks))


Round = tuple[Block, ...]


def rounds(variables: Sequence[Spread], writers: Sequence[int], block_bytes: int = BLOCK_BYTES) -> list[Round]:
    """Returns the rounds in which ranks exchange the blocks of all variables, in the order of the variables.

    The ranks in `writers` write the blocks in turn. Small variables share a round.
    """
    found: list[Round] = []
    blocks: list[Block] = []
    size_bytes = 0
    for block in _blocks(variables, writers, block_bytes):
        block_size_bytes = block.rows * variables[block.variable].row_bytes
        if blocks and size_bytes + block_size_bytes > len(writers) * block_bytes:
            found.append(tuple(blocks))
            blocks, size_bytes = [], 0
        blocks.append(block)
        size_bytes += block_size_bytes
    return [*found, tuple(blocks)] if blocks else found


def _blocks(variables: Sequence[Spread], writers: Sequence[int], block_bytes: int) -> list[Block]:
    blocks: list[Block] = []
    for number, variable in enumerate(variables):
        at_once = variable.block_rows(block_bytes)
        for first in range(0, max(1, variable.rows), at_once):
            rows = min(at_once, variable.rows - first)
            blocks.append(Block(number, first, rows, writers[len(blocks) % len(writers)]))
    return blocks


def own_ranges(of_round: Round, rank: int, ranks: int) -> dict[int, range]:
    """Returns which of its own rows `rank` sends in a round, by the positions of the variables."""
    found: dict[int, range] = {}
    for block in of_round:
        places = block.places(rank, ranks)
        known = found.get(block.variable)
        found[block.variable] = places if known is None else range(known.start, places.stop)
    return found


def messages(of_round: Round, own: dict[int, np.ndarray], rank: int, ranks: int) -> list[np.ndarray]:
    """Returns what `rank` sends to each rank in a round (uint8). `own` has the rows of `own_ranges`, as bytes (uint8
    [rows, row bytes])."""
    parts: list[list[np.ndarray]] = [[] for _ in range(ranks)]
    begins = {variable: places.start for variable, places in own_ranges(of_round, rank, ranks).items()}
    for block in of_round:
        places, begin = block.places(rank, ranks), begins[block.variable]
        rows = own[block.variable][places.start - begin : places.stop - begin]
        parts[block.writer].append(rows.reshape(-1))
    nothing = np.empty(0, np.uint8)
    return [np.concatenate([nothing, *of_rank]) for of_rank in parts]


def brought_together(
    of_round: Round, variables: Sequence[Spread], came: Sequence[np.ndarray], rank: int
) -> list[tuple[Block, np.ndarray]]:
    """Returns the blocks that `rank` writes, as bytes (uint8 [rows, row bytes]). `came` has the message of each
    rank."""
    ranks, found = len(came), []
    ends = [0] * ranks
    for block in of_round:
        if block.writer != rank:
            continue
        row_bytes = variables[block.variable].row_bytes
        whole = aligned_bytes(block.rows * row_bytes).reshape(block.rows, row_bytes)
        for sender in range(ranks):
            begin = ends[sender]
            count = len(block.places(sender, ranks))
            ends[sender] = begin + count * row_bytes
            whole[block.rows_of(sender, ranks)] = came[sender][begin : ends[sender]].reshape(count, row_bytes)
        found.append((block, whole))
    return found


def aligned_bytes(size_bytes: int) -> np.ndarray:
    """Returns an uninitialized array (uint8 [size_bytes]) that TensorFlow need not copy."""
    memory = np.empty(size_bytes + _ALIGNED_BYTES, np.uint8)
    begin = -memory.ctypes.data % _ALIGNED_BYTES
    return memory[begin : begin + size_bytes]
