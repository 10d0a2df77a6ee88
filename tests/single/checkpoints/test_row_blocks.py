"""Rows that are spread over ranks arrive in blocks, whatever the numbers of rows and ranks are."""

from __future__ import annotations

import numpy as np
import pytest

from parallax_runner.checkpoints.row_blocks import Spread, brought_together, messages, own_ranges, rounds

BLOCK_BYTES = 64


def values(rows: int, row_bytes: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, row_bytes), np.uint8)


def exchanged(
    wholes: list[np.ndarray], spreads: list[Spread], ranks: int, writers: list[int]
) -> tuple[list[np.ndarray], int]:
    """Returns the variables as the writers get them, and the largest message."""
    found = [np.zeros_like(whole) for whole in wholes]
    largest = 0
    for of_round in rounds(spreads, writers, BLOCK_BYTES):
        sent = []
        for rank in range(ranks):
            own = {
                number: wholes[number][rank::ranks][places.start : places.stop]
                for number, places in own_ranges(of_round, rank, ranks).items()
            }
            sent.append(messages(of_round, own, rank, ranks))
            largest = max(largest, sum(map(len, sent[-1])))
        for rank in range(ranks):
            came = [by_receiver[rank] for by_receiver in sent]
            assert rank in writers or not any(map(len, came))
            for block, rows in brought_together(of_round, spreads, came, rank):
                found[block.variable][block.first : block.first + block.rows] = rows
    return found, largest


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("writers", ["all", "chief"])
def test_every_row_arrives(ranks: int, writers: str) -> None:
    shapes = [(1, 4), (2, 8), (3, 7), (17, 16), (101, 5), (0, 4), (40, 64), (3, 200), (64, 1)]
    wholes = [values(rows, row_bytes, seed) for seed, (rows, row_bytes) in enumerate(shapes)]
    spreads = [Spread(*shape) for shape in shapes]
    found, _ = exchanged(wholes, spreads, ranks, list(range(ranks)) if writers == "all" else [0])
    for whole, one in zip(wholes, found, strict=True):
        np.testing.assert_array_equal(one, whole)


def test_messages_are_no_larger_than_a_block() -> None:
    wholes = [values(1001, 8, 1), values(7, 8, 2), values(500, 16, 3)]
    spreads = [Spread(*whole.shape) for whole in wholes]
    for ranks in (2, 3):
        _, largest = exchanged(wholes, spreads, ranks, list(range(ranks)))
        assert BLOCK_BYTES / 2 <= largest <= BLOCK_BYTES + ranks * 16


def test_each_writer_gets_its_share() -> None:
    by_writer = [0, 0, 0]
    for of_round in rounds([Spread(1000, 8), *[Spread(4, 8)] * 30], [0, 1, 2], BLOCK_BYTES):
        for block in of_round:
            by_writer[block.writer] += block.rows
    assert max(by_writer) - min(by_writer) <= 8


def test_small_variables_share_a_round() -> None:
    assert len(rounds([Spread(2, 4)] * 16, [0, 1], BLOCK_BYTES)) == 1


def test_a_variable_that_is_not_divisible_is_one_block() -> None:
    (of_round,) = rounds([Spread(1000, 8, is_divisible=False)], [0, 1], BLOCK_BYTES)
    assert [block.rows for block in of_round] == [1000]
