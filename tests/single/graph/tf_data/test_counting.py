"""The number of examples is counted only when it is needed, is kept for later runs, and a long count is announced."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.errors import DataError
from parallax_runner.graph.tf_data import counting
from parallax_runner.graph.tf_data.tf_dataset import TfDataset
from parallax_runner.train.feed import Feed

BATCH = 4
NUMBERS = "numbers.txt"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files of numbers. Every count is kept, in a cache of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(counting, "KEPT_FROM_SECS", 0.0)
    monkeypatch.chdir(tmp_path)
    write(21)
    Path("list.txt").write_text(NUMBERS)
    return tmp_path


def write(count: int) -> None:
    Path(NUMBERS).write_text("".join(f"{number}\n" for number in range(count)))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the data that was read to count it."""
    found, read = [], counting._read

    def noted(wanted: counting.Counting) -> tuple[int, int]:
        found.append(wanted.what)
        return read(wanted)

    monkeypatch.setattr(counting, "_read", noted)
    return found


def as_batches(lines: Any) -> Any:
    """Batches of the lines without 3. The number of lines is unknown."""
    numbers = lines.map(tf.strings.to_number).filter(lambda x: x != 3).shuffle(9, seed=1)
    return numbers.map(lambda x: {"x": x}).batch(BATCH)


def of_a_file() -> Any:
    return as_batches(tf.data.TextLineDataset(NUMBERS))


def of_several_files() -> Any:
    names = tf.data.Dataset.from_tensor_slices([NUMBERS, NUMBERS])
    return as_batches(names.interleave(tf.data.TextLineDataset, num_parallel_calls=2))


def of_batches() -> Any:
    return of_a_file().map(lambda x: {"x": x["x"] * 2})


def of_arrays() -> Any:
    return as_batches(tf.data.Dataset.from_tensor_slices([str(number) for number in range(20_000)]))


def test_making_and_planning_read_nothing() -> None:
    read = []

    def examples() -> Iterator[int]:
        for number in range(2000):
            read.append(number)
            yield number

    spec = tf.TensorSpec([], tf.int64)
    numbers = tf.data.Dataset.from_generator(examples, output_signature=spec).map(lambda x: {"x": x}).batch(BATCH)
    data = TfDataset.of(numbers, numbers, exact=False)
    assert not read
    assert data.validates_at_least(2 * BATCH) and len(read) < 50  # iterators read a little ahead
    assert (data.pass_steps, data.validation_size) == (500, 2000) and len(read) > 4000
    assert not data.validates_at_least(2001)


@pytest.mark.parametrize(("steps", "is_longer"), [(4, True), (5, True), (6, False)])
def test_a_job_of_a_few_steps_counts_only_data_that_it_reads_to_the_end(
    steps: int, is_longer: bool, reads: list[str]
) -> None:
    whole = TfDataset.of(of_a_file())
    first = whole.first_steps(steps)
    assert first.is_endless == is_longer
    assert first.pass_steps == (1 if is_longer else 5) and reads == ([] if is_longer else ["the data"])
    feeds = [Feed(data, BATCH, 0, 1) for data in (first, whole)]
    for step in range(steps):
        found, expected = (feed.train_batches(step * BATCH)[0]["x"] for feed in feeds)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("make", [of_a_file, of_several_files, of_batches, of_arrays])
def test_a_later_run_knows_the_number(make: Callable[[], Any], reads: list[str]) -> None:
    expected = len(list(make()))
    found = [TfDataset.of(make()).pass_steps for _ in range(2)]
    assert found == [expected, expected] and reads == ["the data"]


@pytest.mark.parametrize("make", [of_a_file, of_several_files, of_batches])
def test_a_changed_file_is_counted_again(make: Callable[[], Any], reads: list[str]) -> None:
    before = TfDataset.of(make()).pass_steps
    write(61)
    assert TfDataset.of(make()).pass_steps > before
    state = Path(NUMBERS).stat()
    Path(NUMBERS).write_text(Path(NUMBERS).read_text().replace("\n", "3"))  # of the same size
    os.utime(NUMBERS, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert TfDataset.of(make()).pass_steps == 1  # one line is left
    assert len(reads) == 3


def test_other_filters_and_other_arrays_are_counted_again(reads: list[str]) -> None:
    def steps(text: str, least: float) -> int:
        lines = tf.data.Dataset.from_tensor_slices([text] * 20_000)
        numbers = lines.map(tf.strings.to_number).filter(lambda x: x > least)
        return TfDataset.of(numbers.map(lambda x: {"x": x}).batch(BATCH)).pass_steps

    assert steps("4", 3.0) == steps("5", 3.0) == 5000
    with pytest.raises(DataError, match="the data has no examples"):
        steps("5", 6.0)
    assert len(reads) == 3


def of_python() -> Any:
    lines = tf.data.TextLineDataset(NUMBERS)
    return as_batches(lines.filter(lambda line: tf.py_function(lambda _: True, [line], tf.bool)))


def of_computed_names() -> Any:
    names = tf.data.Dataset.from_tensor_slices(["numbers"]).map(lambda name: name + ".txt")
    return as_batches(names.flat_map(tf.data.TextLineDataset))


def of_names_in_a_file() -> Any:
    return as_batches(tf.data.TextLineDataset("list.txt").flat_map(tf.data.TextLineDataset))


def of_a_cached_file() -> Any:
    return as_batches(tf.data.TextLineDataset(NUMBERS).cache("cached"))


def of_a_variable() -> Any:
    least = tf.Variable(5.0)
    return of_a_file().unbatch().filter(lambda x: x["x"] > least).batch(BATCH)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (of_python, "calls Python code"),
        (of_computed_names, "computes the names of files"),
        (of_names_in_a_file, "names can come from another file"),
        (of_a_cached_file, "CacheDatasetV2 can change"),
        (of_a_variable, "the result of its op VarHandleOp can change"),
    ],
)
def test_what_can_change_unseen_is_counted_by_each_run(
    make: Callable[[], Any],
    reason: str,
    reads: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(counting, "FIRST_LINE_SECS", 0.0)
    dataset = make()
    found = {TfDataset.of(dataset, exact=False).pass_steps for _ in range(2)}
    assert len(found) == 1 and len(reads) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "the next run counts again, because" in last and reason in last


def test_a_long_count_is_announced(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _ = TfDataset.of(of_a_file()).pass_steps
    assert capsys.readouterr().err == ""  # a short one is not
    write(30)
    monkeypatch.setattr(counting, "FIRST_LINE_SECS", 0.0)
    _ = TfDataset.of(of_a_file()).pass_steps
    first, last = capsys.readouterr().err.splitlines()
    assert "the data: counting the examples by reading all of them" in first
    assert "assert_cardinality(N)) before batch" in first
    assert "counted 29 examples" in last and "knows the number" in last


def test_a_damaged_count_is_counted_again(folder: Path, reads: list[str]) -> None:
    _ = TfDataset.of(of_a_file()).pass_steps
    (path,) = (folder / "cache").rglob("*.json")
    for text in ("", "{}", '{"counted": [-1, 2]}', '{"counted": "20"}', "[" * 9999):
        path.write_text(text)
        assert TfDataset.of(of_a_file()).pass_steps == 5
    assert len(reads) == 6


@pytest.mark.parametrize("is_batched_first", [False, True])
def test_a_stated_number_is_not_counted(is_batched_first: bool, reads: list[str]) -> None:
    lines = tf.data.TextLineDataset(NUMBERS).apply(tf.data.experimental.assert_cardinality(21))

    def parsed(line: Any) -> Any:
        return {"x": tf.strings.to_number(line)}

    batches = (
        lines.batch(BATCH, drop_remainder=True).map(parsed) if is_batched_first else lines.map(parsed).batch(BATCH)
    )
    data = TfDataset.of(batches).with_whole_batches()
    assert data.pass_steps == 5 and not reads
    parts = [Feed(data, BATCH // 2, rank, 2).train_batches(6 * BATCH)[0]["x"].tolist() for rank in range(2)]
    assert sorted([*parts[0], *parts[1]]) == [4, 5, 6, 7]
