"""Tables in text files become arrays; the cache is keyed, shared and made anew."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from parallax_runner.data.cache_folder import CacheFolder
from parallax_runner.data.table import conversion, csv_reader, progress, text_stream
from parallax_runner.data.table.convert import BadRows, Partition, Sources, stored_table
from parallax_runner.data.table.stored_table import StoredTable
from parallax_runner.errors import DataError, ParallaxError
from tests.single.data.table.rows_of import Row, columns_of, rows_of, write_csv
from tests.single.data.table.written import written

NAMES = ("a", "n", "s", "l")
COLUMNS = columns_of(a="integer", n="number", s="string", l="string list")
ROWS: list[Row] = [
    (1, 0.5, "x", ("u", "v")),
    (None, None, None, ()),
    (-3, 2.0, 'a "quoted"\ntext, with newlines\n', ("v",)),
    (4, -1.25, "ü 漢字", ("w", "u", "w")),
]


def load(path: Path | str, tmp_path: Path, **changed: object) -> StoredTable:
    arguments: dict = {"sources": Sources({"train": (str(path),)}), "columns": COLUMNS} | changed
    arguments.setdefault("cache_dir", str(tmp_path / "cache"))
    return stored_table(**arguments)


def folders(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


def test_a_table_becomes_arrays(tmp_path: Path) -> None:
    table = load(write_csv(tmp_path / "t.csv", NAMES, ROWS), tmp_path)
    part = table.parts["train"]
    assert rows_of(table) == ROWS
    assert (part.integers.shape, part.numbers.shape, part.codes.shape) == ((4, 1), (4, 1), (4, 1))
    assert (part.integers.dtype, part.numbers.dtype, part.codes.dtype) == (np.int64, np.float32, np.int32)
    assert part.codes.tolist() == [[1], [0], [2], [3]], "in the order of the first appearance"
    assert isinstance(part.codes, np.memmap)


def test_codes_are_shared_by_all_parts(tmp_path: Path) -> None:
    train = write_csv(tmp_path / "train.csv", NAMES, ROWS)
    validation = write_csv(tmp_path / "validation.csv", NAMES, ROWS[::-1])
    sources = Sources({"train": (str(train),), "validation": (str(validation),)})
    table = load("", tmp_path, sources=sources)
    assert rows_of(table, "validation") == ROWS[::-1]
    assert table.parts["validation"].codes.tolist() == table.parts["train"].codes.tolist()[::-1]


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("block_bytes", [1, 64, 4096])
def test_neither_threads_nor_blocks_change_the_table(
    threads: int, block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(number, number / 4, f"s{number % 37}\n,{number % 11}", (f"{number % 7}",)) for number in range(400)]
    path = write_csv(tmp_path / "t.csv", NAMES, rows)
    partition = Partition(fractions={"validation": 0.2, "test": 0.1})
    expected = load(path, tmp_path, partition=partition)
    monkeypatch.setattr(text_stream, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(conversion.os, "sched_getaffinity", lambda _pid: range(threads))
    other = load(path, tmp_path, partition=partition, cache_dir=str(tmp_path / "other"))
    for part in ("train", "validation", "test"):
        assert rows_of(other, part) == rows_of(expected, part)
        assert other.parts[part].codes.tolist() == expected.parts[part].codes.tolist()
    assert other.digest == expected.digest


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_neither_long_rows_nor_parsed_bytes_change_the_table(
    newline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow parses some bytes of a block at a time, if there are no quotation marks. A row may have more bytes."""
    words = ["x" * (number % 90 == 70 and 300) + f"{number % 37:03}" for number in range(400)]
    path = tmp_path / "t.csv"
    path.write_text(newline.join(["s,n", *(f"{word},{number}" for number, word in enumerate(words))]), newline="")
    expected = load(path, tmp_path, columns=columns_of(s="string", n="integer"))
    assert rows_of(expected) == [(word, number) for number, word in enumerate(words)]
    for parsed_bytes in (9, 64, 1000):
        monkeypatch.setattr(csv_reader, "PARSED_BYTES", parsed_bytes)
        cache = str(tmp_path / str(parsed_bytes))
        other = load(path, tmp_path, columns=columns_of(s="string", n="integer"), cache_dir=cache)
        assert rows_of(other) == rows_of(expected)
        assert other.digest == expected.digest


def test_the_second_load_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_csv(tmp_path / "t.csv", NAMES, ROWS)
    first = load(path, tmp_path)
    monkeypatch.setattr(csv_reader, "pieces", None)
    assert rows_of(load(path, tmp_path)) == rows_of(first)


def test_changes_are_noticed(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", NAMES, ROWS)
    load(path, tmp_path)
    load(path, tmp_path, columns=COLUMNS[:3])
    load(path, tmp_path, partition=Partition(fractions={"test": 0.5}))
    load(path, tmp_path, bad_rows=BadRows("skip"))
    before = path.stat()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    load(path, tmp_path)
    assert len(folders(tmp_path)) == 5


def test_the_digest_follows_the_values(tmp_path: Path) -> None:
    same = load(write_csv(tmp_path / "t.csv", NAMES, ROWS), tmp_path).digest
    assert load(write_csv(tmp_path / "u.csv", NAMES, ROWS), tmp_path).digest == same
    changed = [*ROWS[:3], (4, -1.25, "ü 漢字", ("w", "u", "v"))]
    assert load(write_csv(tmp_path / "t.csv", NAMES, changed), tmp_path).digest != same


@pytest.mark.parametrize("name", ["train.codes.npy", "strings2.data.npy", "train.blocks.npy", "table.json"])
def test_a_damaged_table_is_made_anew(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_csv(tmp_path / "t.csv", NAMES, ROWS)
    load(path, tmp_path)
    (folder,) = folders(tmp_path)
    with open(folder / name, "r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"\x7f")
    assert rows_of(load(path, tmp_path)) == ROWS
    assert f"{folder}: damaged cache of tables, making it anew" in caplog.text


AT_ONCE = """
import sys
from pathlib import Path
from tests.single.data.table.test_convert import ROWS, load, rows_of
print("ready", flush=True)
sys.stdin.readline()
table = load(sys.argv[1], Path(sys.argv[2]))
print(table.folder.stat().st_ino, rows_of(table) == ROWS * 500)
"""


def test_processes_that_start_at_once_share_one_table(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", NAMES, ROWS * 500)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", AT_ONCE, path, tmp_path], **pipes) for _ in range(3)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    found = [process.communicate(timeout=60)[0] for process in processes]
    (folder,) = folders(tmp_path)
    assert found == [f"{folder.stat().st_ino} True\n"] * 3


def test_a_process_that_waits_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "parallax_runner")
    cached = CacheFolder(tmp_path / "key", "tables")
    waiting = threading.Thread(target=lambda: cached.alone().__enter__())
    with cached.alone():
        waiting.start()
        while "waiting for another process that makes or verifies tables" not in caplog.text:
            time.sleep(0.01)
        assert waiting.is_alive()
    waiting.join(timeout=20)
    assert not waiting.is_alive()


SLOW = """
import sys, time
from pathlib import Path
from parallax_runner.data.cache_folder import CacheFolder
from parallax_runner.data.table import conversion
from tests.single.data.table.test_convert import load
conversion.write_files = lambda *_: (print("written", flush=True), time.sleep(60))
load(sys.argv[1], Path(sys.argv[2]))
"""


def test_a_killed_conversion_leaves_no_table_and_is_removed_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_csv(tmp_path / "t.csv", NAMES, ROWS)
    process = subprocess.Popen([sys.executable, "-c", SLOW, path, tmp_path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"written\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    (left,) = folders(tmp_path)
    an_hour_ago = time.time() - 3700
    for file in (*left.iterdir(), left):
        os.utime(file, (an_hour_ago, an_hour_ago))
    assert rows_of(load(path, tmp_path)) == ROWS
    assert [folder.name for folder in folders(tmp_path)] == [left.name.partition(".")[0]]
    assert "a killed process has left behind" in caplog.text


def test_a_full_disk_is_told_before_and_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_csv(tmp_path / "t.csv", NAMES, ROWS * 100)
    monkeypatch.setattr(text_stream, "BLOCK_BYTES", 256)
    usage = progress.shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(progress.shutil, "disk_usage", lambda _folder: usage._replace(free=100))
        with pytest.raises(DataError, match=r"cache: the arrays of the files need about .* and 0\.0 GB are free\. Set"):
            load(path, tmp_path)
    assert folders(tmp_path) == []

    def full(*_arguments: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(conversion.PartWriter, "append", full)
    with pytest.raises(
        DataError, match=r"cannot write tables: No space left on device\. Set data\.cache_dir .* larger disk"
    ):
        load(path, tmp_path)
    assert folders(tmp_path) == []


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_csv(tmp_path / "t.csv", NAMES, ROWS)
    append = conversion.PartWriter.append

    def append_and_grow(self: conversion.PartWriter, *arguments: object, **named: object) -> None:
        with open(path, "a") as file:
            file.write("9,9,9,9\n")
        append(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(conversion.PartWriter, "append", append_and_grow)
    monkeypatch.setattr(conversion, "_WAITING_BLOCKS_PER_THREAD", 0)
    monkeypatch.setattr(text_stream, "BLOCK_BYTES", 16)
    with pytest.raises(DataError, match=r"t\.csv: this file changed while it was read"):
        load(path, tmp_path)


def test_partition_by_fractions_is_seeded_and_complete(tmp_path: Path) -> None:
    rows: list[Row] = [(number, 0.0, "s", ()) for number in range(3000)]
    path = write_csv(tmp_path / "t.csv", NAMES, rows)

    def parts(seed: int) -> dict[str, list[Row]]:
        table = load(path, tmp_path, partition=Partition(fractions={"validation": 0.2, "test": 0.1}, seed=seed))
        return {part: rows_of(table, part) for part in table.parts}

    found = parts(0)
    assert sorted(row for part in found.values() for row in part) == rows
    assert 500 < len(found["validation"]) < 700
    assert 220 < len(found["test"]) < 380
    assert parts(1) != found


HALF = Partition(fractions={"validation": 0.5})


@pytest.mark.parametrize(
    "names", [("a.csv",), ("b.csv.gz",), ("t.parquet",), ("t.jsonl",), ("t.tfrecord",), ("1.tsv", "2.tsv")]
)
def test_names_formats_and_files_do_not_matter_for_a_partition(names: tuple[str, ...], tmp_path: Path) -> None:
    rows: list[Row] = [(number, 0.0, "s", ()) for number in range(300)]
    expected = load(write_csv(tmp_path / "first.csv", NAMES, rows), tmp_path, partition=HALF)
    size = len(rows) // len(names)
    for number, name in enumerate(names):
        written(tmp_path / "same" / name, COLUMNS, rows[number * size : (number + 1) * size])
    found = load(tmp_path / "same", tmp_path, partition=HALF)
    for part in ("train", "validation"):
        assert rows_of(found, part) == rows_of(expected, part)


def test_a_bad_row_moves_no_other_row_to_another_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_stream, "BLOCK_BYTES", 100)
    rows: list[Row] = [(number, 0.0, "s", ()) for number in range(300)]
    whole = load(write_csv(tmp_path / "whole.csv", NAMES, rows), tmp_path, partition=HALF)
    bad = {0, 7, 8, 150, 299}
    damaged: list[Row] = [("x", *row[1:]) if number in bad else row for number, row in enumerate(rows)]
    path = write_csv(tmp_path / "damaged.csv", NAMES, damaged)
    found = load(path, tmp_path, partition=HALF, bad_rows=BadRows("skip"))
    for part in ("train", "validation"):
        assert rows_of(found, part) == [row for row in rows_of(whole, part) if row[0] not in bad]


def test_partition_by_the_bounds_of_a_column_that_is_not_read(tmp_path: Path) -> None:
    names = ("day", "time", *NAMES)
    rows = [(f"2024-01-0{number}", 1_700_000_000 + number, *ROWS[number % 4]) for number in range(1, 9)]
    path = write_csv(tmp_path / "t.csv", names, rows)
    by_day = Partition(column="day", bounds={"test": "2024-01-07", "validation": "2024-01-05"})
    by_time = Partition(column="time", bounds={"test": 1_700_000_007, "validation": 1_700_000_005})
    for partition in (by_day, by_time):
        table = load(path, tmp_path, partition=partition)
        assert [table.parts[part].rows for part in ("train", "validation", "test")] == [4, 2, 2]
        assert rows_of(table, "test") == [row[2:] for row in rows[6:]]


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet", "t.tfrecord"])
@pytest.mark.parametrize(("column", "bound"), [("a", 2**53 + 3), ("n", 0.75), ("s", "x")])
def test_partition_by_a_column_of_the_table(name: str, column: str, bound: float | str, tmp_path: Path) -> None:
    rows: list[Row] = [(2**53 + 1 + 2 * number, number / 2, "wxyz"[number], ("u",)) for number in range(4)]
    path = written(tmp_path / name, COLUMNS, rows)
    table = load(path, tmp_path, partition=Partition(column=column, bounds={"test": bound}))
    at = NAMES.index(column)
    assert rows_of(table) == [row for row in rows if row[at] < bound]
    assert rows_of(table, "test") == [row for row in rows if row[at] >= bound]


REFUSED = {
    "an empty file": ("", r"t\.csv: this file is empty"),
    "only a header": ("a,n,s,l\n", r"t\.csv: this file has no rows\. Remove it"),
    "another header": ("a,n,sx,l\n1,2,x,y\n", r"there is no column s; the nearest name is sx"),
    "a doubled name": ("a,n,s,l,s\n1,2,x,y,z\n", r"2 columns have the name s"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_files_without_the_columns_are_refused(case: str, tmp_path: Path) -> None:
    text, message = REFUSED[case]
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        load(tmp_path / "t.csv", tmp_path)


def test_headers_that_differ_are_refused(tmp_path: Path) -> None:
    write_csv(tmp_path / "t" / "1.csv", NAMES, ROWS)
    write_csv(tmp_path / "t" / "2.csv", ("n", "a", "s", "l"), ROWS)
    with pytest.raises(DataError, match=r"2\.csv: expected the columns of .*1\.csv, but column 1 is n, not a"):
        load(tmp_path / "t", tmp_path)


@pytest.mark.parametrize("path", ["missing.csv", "*.csv", "empty"])
def test_a_missing_shard_is_named(path: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ParallaxError, match=r"missing\.csv|data\.train=.*no file there"):
        load(tmp_path / path, tmp_path)


def test_folders_and_globs_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        write_csv(tmp_path / "t" / f"{number}.csv", NAMES, [(number, 0.0, "s", ())])
    for path in ("t", "t/*.csv", "**/*.csv"):
        assert [row[0] for row in rows_of(load(tmp_path / path, tmp_path))] == [1, 10, 2]


def test_the_progress_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "parallax_runner")
    monkeypatch.setattr(progress, "REPORT_SECS", 0.0)
    monkeypatch.setattr(text_stream, "BLOCK_BYTES", 256)
    load(write_csv(tmp_path / "t.csv", NAMES, ROWS * 50), tmp_path)
    shares = [int(share) for share in re.findall(r"converting files to arrays: (\d+) % of", caplog.text)]
    assert len(shares) > 5
    assert shares == sorted(shares)
    assert shares[-1] == 100
    assert "stage converting files to arrays" in caplog.text


def test_a_part_has_either_files_or_a_share_of_the_rows(tmp_path: Path) -> None:
    path = str(write_csv(tmp_path / "t.csv", NAMES, ROWS))
    sources = Sources({"train": (path,), "test": (path,)})
    with pytest.raises(ParallaxError, match=r"data\.test=.*t\.csv, data\.partition=test: expected either files"):
        load("", tmp_path, sources=sources, partition=Partition(fractions={"test": 0.1}))


WRONG_PARTITIONS: list[tuple[dict, str]] = [
    ({"fractions": {"train": 0.5}}, r"fractions=train: expected validation or test"),
    ({"fractions": {"test": 0.5, "validation": 0.5}}, "a rest for training"),
    ({}, "expected either fractions, or bounds and a column"),
    ({"bounds": {"test": 1}}, "expected a column and bounds together"),
    ({"column": "a", "bounds": {"test": 1, "validation": "x"}}, "only numbers or only strings"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG_PARTITIONS)
def test_a_wrong_partition_is_refused(settings: dict, message: str) -> None:
    with pytest.raises(ParallaxError, match=message):
        Partition(**settings)


PEAK = """
import re, sys
from pathlib import Path
from tests.single.data.table.test_convert import load, text_stream
text_stream.BLOCK_BYTES = 2**18
load(sys.argv[1], Path(sys.argv[2]))
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    header, *lines = write_csv(tmp_path / "t.csv", NAMES, [ROWS[0], ROWS[1], ROWS[3]]).read_bytes().splitlines(True)
    rows = b"".join(lines) * 300_000  # 12 MB
    peaks_kib = []
    for times in (1, 8):
        path = tmp_path / f"{times}.csv"
        path.write_bytes(header + rows * times)
        said = subprocess.run([sys.executable, "-c", PEAK, path, tmp_path], capture_output=True, text=True, check=True)
        peaks_kib.append(int(said.stdout))
    assert peaks_kib[1] - peaks_kib[0] < 30 * 1024, "the file has grown by 84 MB"
