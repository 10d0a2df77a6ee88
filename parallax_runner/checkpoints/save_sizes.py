"""How much a rank holds in memory while it writes its part of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax_runner.checkpoints.part_files import PART_BYTES
from parallax_runner.checkpoints.row_blocks import BLOCK_BYTES

# A checkpoint should have few files, so a rank writes about so many parts. If no variable is large enough for that, it
# writes more of them.
PARTS, MOST_PARTS = 16, 64
# Smaller parts and blocks would save no memory that counts, but cost files and exchanges. Training would wait for each
# small save if a rank copied less.
LEAST_PART_BYTES, LEAST_BLOCK_BYTES, LEAST_COPY_BYTES = 16 << 20, 4 << 20, 16 << 20
# An exchange needs memory of so many blocks: own rows, messages, received messages, and blocks.
BLOCKS_IN_EXCHANGE = 4


@dataclass(frozen=True)
class SaveSizes:
    """How many bytes of own rows a rank copies before training goes on, and how large its parts and blocks are.

    Together, the copy, a part and the blocks of an exchange are no larger than the rank's rows of the variable of which
    it has the most bytes, unless one of them has its least size.
    """

    copy_bytes: int
    part_bytes: int
    block_bytes: int

    @classmethod
    def of(cls, own_bytes: Sequence[int], most_block_bytes: int = BLOCK_BYTES) -> SaveSizes:
        """Returns the sizes for a rank that has `own_bytes` of each variable. All ranks must use the same ones. Blocks
        have at most `most_block_bytes`."""
        largest_bytes, all_bytes = max(own_bytes), sum(own_bytes)
        fitting_block_bytes = largest_bytes // 4 // BLOCKS_IN_EXCHANGE
        block_bytes = min(most_block_bytes, max(LEAST_BLOCK_BYTES, fitting_block_bytes))
        few_parts_bytes = max(PART_BYTES, all_bytes // PARTS)
        fitting_part_bytes = min(few_parts_bytes, largest_bytes // 2)
        part_bytes = max(LEAST_PART_BYTES, all_bytes // MOST_PARTS, fitting_part_bytes)
        spared_bytes = largest_bytes - part_bytes - BLOCKS_IN_EXCHANGE * block_bytes
        return cls(max(LEAST_COPY_BYTES, spared_bytes), part_bytes, block_bytes)
