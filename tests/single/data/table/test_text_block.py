"""What blocks of CSV and of JSON lines have in common: the lines of their rows, and their halves."""

from __future__ import annotations

import numpy as np
import pytest

from parallax_runner.data.table.csv_reader import CsvBlock, CsvLayout
from parallax_runner.data.table.json_reader import JsonBlock
from parallax_runner.data.table.text_block import TextBlock
from parallax_runner.data.table.text_stream import TextPiece


def piece_of(text: str, first_line: int) -> TextPiece:
    return TextPiece(text.encode(), first_line, text.count("\n"), len(text))


BLOCKS = {
    "csv": CsvBlock(layout=CsvLayout(",", ("a", "b")), piece=piece_of('1,x\n2,"y\nz"\n3,w\n', 5)),
    "json": JsonBlock(piece=piece_of('{"a":1}\n\n{"a":2}\n{"a":3}\n', 5)),
}
LINES = {"csv": [5, 6, 8], "json": [5, 7, 8]}


@pytest.mark.parametrize("kind", BLOCKS)
def test_the_halves_of_a_block_have_its_lines(kind: str) -> None:
    def lines_of(block: TextBlock) -> list[int]:
        halves = block.divided()
        return block.lines().tolist() if halves is None else [line for half in halves for line in lines_of(half)]

    block = BLOCKS[kind]
    assert block.place == "line"
    assert block.lines().tolist() == lines_of(block) == LINES[kind]
    np.testing.assert_array_equal(block.regular_start(3) is None, True)  # one line belongs to no row of its own
    first, _ = block.divided() or (None, None)
    assert first is not None and first.regular_start(first.piece.line_count) == 5
