"""What a rank holds in memory while it writes its part of a checkpoint."""

from __future__ import annotations

import pytest

from parallax_runner.checkpoints.part_files import PART_BYTES
from parallax_runner.checkpoints.row_blocks import BLOCK_BYTES
from parallax_runner.checkpoints.save_sizes import (
    BLOCKS_IN_EXCHANGE,
    LEAST_BLOCK_BYTES,
    LEAST_COPY_BYTES,
    LEAST_PART_BYTES,
    MOST_PARTS,
    SaveSizes,
)

MB = 1 << 20


def held_bytes(sizes: SaveSizes) -> int:
    return sizes.copy_bytes + sizes.part_bytes + BLOCKS_IN_EXCHANGE * sizes.block_bytes


@pytest.mark.parametrize(
    "own_bytes", [[100 * MB] * 2, [256 * MB] * 2, [100 * MB, 3 * MB], [2048 * MB] * 8, [90 * MB] * 8]
)
def test_a_save_holds_no_more_than_the_largest_variable(own_bytes: list[int]) -> None:
    sizes = SaveSizes.of(own_bytes)
    assert held_bytes(sizes) <= max(own_bytes)
    assert LEAST_BLOCK_BYTES <= sizes.block_bytes <= BLOCK_BYTES


def test_a_save_of_small_variables_holds_little() -> None:
    sizes = SaveSizes.of([50 * MB] * 8)
    assert held_bytes(sizes) <= 60 * MB
    assert SaveSizes.of([MB]) == SaveSizes(LEAST_COPY_BYTES, LEAST_PART_BYTES, LEAST_BLOCK_BYTES)


def test_a_rank_writes_few_parts() -> None:
    assert SaveSizes.of([256 * MB] * 2).part_bytes == PART_BYTES
    assert SaveSizes.of([2048 * MB] * 2).part_bytes == 256 * MB, "a sixteenth"
    # No variable is large, but a rank has many of them.
    assert SaveSizes.of([10 * MB] * 1000).part_bytes == 10_000 * MB // MOST_PARTS


def test_blocks_may_be_limited() -> None:
    assert SaveSizes.of([2048 * MB], most_block_bytes=128).block_bytes == 128
