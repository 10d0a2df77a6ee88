"""The native exchanges under a real mpirun: the results of each rank of tests/parallel/native_script.py."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.collectives.native.library import library
from parallax_runner.launch.job import thread_environment
from parallax_runner.launch.mpirun.command import ALLOW_ROOT, SHARE_CORES, YIELD_WHEN_IDLE, find_mpirun
from tests.parallel.native_script import (
    DTYPES_IN_PIECES,
    ENDINGS,
    LENGTHS,
    LONG_SECS,
    MANY,
    MANY_ROWS,
    NUMBERS,
    SLOW_SECS,
    rows_to_all,
    values_of,
)

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("native_script.py")
SIZES = (2, 3)

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """The results of each rank, in rank order, of two runs that take place on this host at the same time."""
    library()
    folders = {size: tmp_path_factory.mktemp(f"{size}_ranks") for size in SIZES}
    with ExitStack() as stack:
        launched = [stack.enter_context(started(size, folder)) for size, folder in folders.items()]
        for process in launched:
            _, errors = process.communicate(timeout=800)
            assert process.returncode == 0, errors[-4000:]
    return {
        size: [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(size)]
        for size, folder in folders.items()
    }


@contextmanager
def started(size: int, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Runs the script; ends it if the test fails."""
    env = dict(os.environ) | thread_environment(1) | ALLOW_ROOT | {"PYTHONPATH": str(ROOT)}
    command = [find_mpirun(), "-np", str(size), *YIELD_WHEN_IDLE, *SHARE_CORES, sys.executable, str(SCRIPT)]
    with subprocess.Popen(
        [*command, str(folder)], env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


@pytest.fixture(scope="module", params=SIZES, ids=("2_ranks", "3_ranks"))
def ranks(request: pytest.FixtureRequest, runs: dict[int, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The results of each rank of one of the runs."""
    return runs[request.param]


def test_an_exchange_before_the_ranks_have_joined_is_an_error(ranks: list) -> None:
    assert all("FailedPrecondition" in rank["early"] and "has not joined" in rank["early"] for rank in ranks)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_sums_are_added_in_rank_order(ranks: list, dtype: str) -> None:
    """Equal bits on all ranks; float16 and bfloat16 are added as float32 and rounded once."""
    wide = np.float32 if dtype in ("float16", "bfloat16") else tf.as_dtype(dtype).as_numpy_dtype
    expected = []
    for length in LENGTHS:
        total = values_of(0, length, dtype).astype(wide)
        for rank in range(1, len(ranks)):
            total = total + values_of(rank, length, dtype).astype(wide)
        expected.append(total.astype(tf.as_dtype(dtype).as_numpy_dtype).tobytes().hex())
    for rank in ranks:
        assert rank["sums"][f"{dtype} together"] == expected
        assert rank["sums"][f"{dtype} alone"] == expected


def test_long_sums_are_added_in_rank_order(ranks: list) -> None:
    """They are carried in pieces, and each rank sums a part of them in several steps."""
    expected = []
    for dtype in DTYPES_IN_PIECES:
        wide = np.float32 if dtype == "float16" else tf.as_dtype(dtype).as_numpy_dtype
        total = values_of(0, MANY, dtype).astype(wide)
        for rank in range(1, len(ranks)):
            total = total + values_of(rank, MANY, dtype).astype(wide)
        expected.append(hashlib.sha256(total.astype(tf.as_dtype(dtype).as_numpy_dtype)).hexdigest())
    assert [rank["in_pieces"]["sums"] for rank in ranks] == [expected] * len(ranks)


def test_many_rows_arrive_in_rank_order(ranks: list) -> None:
    size = len(ranks)
    for rank, found in enumerate(ranks):
        parts = []
        for other in range(size):
            before = sum(MANY_ROWS + other + to for to in range(rank))
            parts.append(rows_to_all(other, size)[before : before + MANY_ROWS + other + rank])
        assert found["in_pieces"]["counts"] == [len(part) for part in parts]
        assert found["in_pieces"]["rows"] == hashlib.sha256(np.concatenate(parts)).hexdigest()


def test_what_is_needed_first_comes_first(ranks: list) -> None:
    """Also if it begins later. On a busy machine, a rank may begin so late that the other exchange has ended."""
    assert any(all(tries) for tries in zip(*(rank["urgent"]["is_first"] for rank in ranks), strict=True))


def test_no_sum_depends_on_which_rank_is_late(ranks: list) -> None:
    orders = [sums for rank in ranks for sums in rank["late"]["sums"]]
    assert len(orders) == len(ranks) * math.factorial(len(ranks))
    assert all(sums == ranks[0]["sums"]["float32 alone"] for sums in orders)


def test_exchanges_that_end_leave_no_transfer_behind(ranks: list) -> None:
    """Otherwise a later exchange could get the rows of an earlier one."""
    right = [float(other) for other in range(len(ranks))]
    for rank in ranks:
        assert rank["ended_rows"] == {"ended": ENDINGS, "right": right, "transfers": 0}


@pytest.mark.parametrize("dtype", [*NUMBERS, "bool"])
@pytest.mark.parametrize("width", [0, 1, 3000])
def test_rows_arrive_in_rank_order(ranks: list, dtype: str, width: int) -> None:
    size = len(ranks)
    for number, rank in enumerate(ranks):
        gathered, came, of_chief, counts = rank["rows"][f"{dtype} {width}"]
        assert gathered == [[other % 2] * width for other in range(size) for _ in range(other)]
        assert counts == [(other + number) % 3 for other in range(size)]
        assert came == [[other % 2] * width for other in range(size) for _ in range((other + number) % 3)]
        assert of_chief == [1] * width


def test_iterations_of_loops_match(ranks: list) -> None:
    total = sum(range(9)) * sum(range(1, len(ranks) + 1))
    assert all(rank["in_loops"]["totals"] == [total, total] for rank in ranks)


def test_streams_do_not_wait_for_each_other(ranks: list) -> None:
    size = len(ranks)
    expected = [number * size + sum(range(size)) for number in range(50)]
    assert all(rank["streams"] == {"step": expected, "beside": expected} for rank in ranks)


def test_sessions_and_train_ops_alternate(ranks: list) -> None:
    size = len(ranks)
    first, second = ([size * (size + 1) / 2, number * size] for number in (10.0, 20.0))
    assert all(rank["sessions"]["found"] == [first, second, first] * 3 for rank in ranks)


@pytest.mark.parametrize(
    ("fault", "sides"),
    [
        ("length", ("a sum of float with 3 elements", "a sum of float with 4 elements")),
        ("width", ("a concatenation of float with rows of 8 bytes", "a concatenation of float with rows of 12 bytes")),
        ("shape", ("a broadcast of float with 8 elements", "a broadcast of float with 9 elements")),
        ("dtype", ("a sum of float with 3 elements", "a sum of double with 3 elements")),
        ("kind", ("a sum of float with 3 elements", "a concatenation of float with rows of 4 bytes")),
    ],
)
def test_a_mismatch_ends_the_exchange_on_every_rank_and_names_both_sides(
    ranks: list, fault: str, sides: tuple[str, str]
) -> None:
    for rank in ranks:
        said = rank["faults"][fault]["said"]
        assert said.startswith("AbortedError")
        assert all(side in said for side in sides)


def test_a_local_failure_ends_the_exchange_of_the_others(ranks: list) -> None:
    last = len(ranks) - 1
    assert "not a number here" in ranks[-1]["faults"]["local"]["said"]
    for rank in ranks[:-1]:
        assert is_ended_by(last, rank["faults"]["local"]["said"], ranks)


def test_a_deadline_of_one_rank_ends_the_exchange_of_the_others(ranks: list) -> None:
    assert ranks[0]["faults"]["deadline"]["said"].startswith("DeadlineExceededError")
    for rank in ranks[1:]:
        assert is_ended_by(0, rank["faults"]["deadline"]["said"], ranks)


def is_ended_by(failed: int, said: str, ranks: list) -> bool:
    """Between two ranks, a rank that has all values of the other one has its result, whatever happens there later."""
    has_all_values = len(ranks) == 2 and said == "no error"
    return has_all_values or f"the run was cancelled or failed on rank {failed}" in said


def test_a_rank_that_ends_is_named_by_those_that_wait_for_it(ranks: list) -> None:
    last = len(ranks) - 1
    assert all(f"rank {last} has ended" in rank["without_the_last"] for rank in ranks[:-1])


def test_a_rank_that_goes_on_without_an_exchange_ends_it(ranks: list) -> None:
    for rank in ranks[1:]:
        assert "rank 0 has begun its next session.run without it" in rank["faults"]["skipped"]["said"]


@pytest.mark.parametrize("fault", ["length", "width", "shape", "dtype", "kind", "local", "deadline", "skipped"])
def test_later_exchanges_are_right(ranks: list, fault: str) -> None:
    assert all(rank["faults"][fault]["after"] == len(ranks) for rank in ranks)


def test_a_run_that_fails_before_its_exchanges_is_as_if_it_had_not_begun(ranks: list) -> None:
    size = len(ranks)
    expected = [number * 10.0 * size + sum(range(size)) for number in range(5)]
    assert all(rank["uncounted"]["found"] == expected for rank in ranks)


def test_a_rank_that_is_ahead_waits_for_the_others(ranks: list) -> None:
    """Also the chief, which gets nothing in a broadcast. So messages cannot come early without a limit."""
    assert all(rank["ahead"]["came"] == [0.0] * 3 for rank in ranks)
    assert ranks[0]["ahead"]["secs"] > 0.5 * SLOW_SECS


def test_messages_of_runs_that_failed_are_not_kept(ranks: list) -> None:
    size = len(ranks)
    assert ranks[0]["ahead"]["failed"] == 3
    for rank in ranks:
        assert rank["ahead"]["sums"] == [sum(range(size))] * 2
        assert (rank["ahead"]["early"], rank["ahead"]["transfers"]) == (0, 0)


def test_a_waiting_process_leaves_its_core_to_others(ranks: list) -> None:
    """The text of the limit is 2 %, and this process also has TensorFlow's and Python's threads."""
    found = ranks[1]["waiting"]
    assert found["secs"] > 0.5 * LONG_SECS
    assert found["cpu_secs"] < 0.1 * found["secs"]


def test_places(ranks: list) -> None:
    assert [rank["places"]["places"] for rank in ranks] == [
        [number, len(ranks), number] for number in range(len(ranks))
    ]
