"""The CPU time of numbering, and the memory without pages of files."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from benchmarks import conversion, criteo, reading
from benchmarks.numbering import Numbering
from benchmarks.own_memory import PeakMemory, anonymous_bytes
from parallax_runner.data.table import encoded_block
from parallax_runner.data.table.convert import Sources, stored_table
from parallax_runner.data.table.stored_table import Cell, RawColumn


def test_numbering_is_a_part_of_a_conversion(tmp_path: Path) -> None:
    criteo.write(tmp_path / "t.tsv", 1)
    original = encoded_block.numbered
    with Numbering() as numbering:
        columns = [RawColumn(name, Cell.STRING) for name in criteo.STRINGS]
        stored_table(
            Sources({"train": (str(tmp_path / "t.tsv"),)}, header=criteo.NAMES), columns, cache_dir=str(tmp_path)
        )
    assert numbering.cpu_secs > 0
    assert encoded_block.numbered is original


def test_pages_of_files_are_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(50_000_000))
    before = anonymous_bytes()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        assert np.frombuffer(pages, np.uint8).sum() == 0
        assert anonymous_bytes() - before < 40_000_000
    with PeakMemory() as memory:
        while memory.peak_bytes - before < 90_000_000:
            np.ones(100_000_000, np.uint8)


def test_shares_compare_one_round() -> None:
    found = [
        conversion.Conversion(way, number, secs * number, 2 * secs, secs / 2, 1, 1)
        for number in (1, 2)
        for way, secs in ((conversion.OURS, 4.0), (conversion.STRINGS, 2.0), (conversion.CODES, 8.0))
    ]
    ours = conversion.rows_of(found, 10**6).body[0]
    assert ours[3:5] == ("0.50 (0.50 – 0.50)", "2.00 (2.00 – 2.00)")
    assert ours[7:9] == ("0.50 (0.50 – 0.50)", "0.67 (0.67 – 0.67)")


def test_rates_are_rows_of_cpu_time() -> None:
    found = [
        reading.Reading(way, number, 1000 * number, 5.0, 2.0 if way == reading.PEER else 1.0, 10, 20)
        for number in (1, 2)
        for way in reading.WAYS
    ]
    rows = {row[0]: row for row in reading.rows_of(found).body}
    assert rows["table, full"][1:4] == ("1,500", "1,000 – 2,000", "2.00 (2.00 – 2.00)")
    assert rows[reading.PEER][3] == "1.00 (1.00 – 1.00)"
