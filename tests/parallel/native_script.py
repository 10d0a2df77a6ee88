"""What the native exchanges do, on one rank: `native_script.py FOLDER [CASE…]`. Writes the results of these cases, or
of all, to rank_RANK.json."""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.collectives import ops
from parallax_runner.collectives.chosen import BACKENDS, choose
from parallax_runner.collectives.native.ops import native_ops
from parallax_runner.collectives.streams import stream
from tests.parallel.native_endings import LATE_SECS, ahead, cancelled, ended_rows, faults, left_out, uncounted
from tests.parallel.native_order import after_a_gap, in_loops, sessions, sessions_beside, streams

NUMBERS = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "int64")
LENGTHS = (0, 1, 3, 5000, 100_000)
MANY = 700_003
DTYPES_IN_PIECES = ("float16", "float32", "int64")
MANY_ROWS = 3001
LATER_ROWS, FIRST_ROWS = 16_384, 4096  # of 4 KiB, to each rank
TRIES = 5
IDLE_SECS = 3.0
# How often a rank waits for another one, and for how many seconds.
WAITS = {"long": (1, 3.0), "short": (40, 0.05)}


def values_of(size: int, rank: int, length: int, dtype: str) -> np.ndarray:
    """Returns numbers whose sum depends on the order of additions, if they are of floating point. A run of another size
    has other numbers."""
    drawn = np.random.default_rng([size, rank, length]).normal(size=length) * 10.0 ** (rank * 2)
    is_whole = "int" in dtype
    return (np.abs(drawn) % 50 if is_whole else drawn).astype(tf.as_dtype(dtype).as_numpy_dtype)


def sums_in_rank_order(size: int, length: int, dtype: str) -> np.ndarray:
    """Returns the sum of all ranks' values. float16 and bfloat16 are added as float32 and rounded once."""
    given = tf.as_dtype(dtype).as_numpy_dtype
    wide = np.float32 if dtype in ("float16", "bfloat16") else given
    total = values_of(size, 0, length, dtype).astype(wide)
    for rank in range(1, size):
        total = total + values_of(size, rank, length, dtype).astype(wide)
    return total.astype(given)


def sums(rank: int, size: int) -> dict[str, Any]:
    """Sums of all dtypes and of several lengths, alone and together."""
    with tf.Graph().as_default(), tf.Session() as session:
        found = {}
        for dtype in NUMBERS:
            given = [tf.constant(values_of(size, rank, length, dtype)) for length in LENGTHS]
            together = ops.sum_over_ranks(given, name="together")
            alone = [ops.sum_of_one(one, name="alone") for one in given]
            for name, tensors in {"together": together, "alone": alone}.items():
                found[f"{dtype} {name}"] = [_hex(array) for array in session.run(tensors)]
        return found


def in_pieces(rank: int, size: int) -> dict[str, Any]:
    """Sums and rows that are carried in several pieces, of lengths that are no multiple of a piece."""
    with tf.Graph().as_default(), tf.Session() as session:
        given = [tf.constant(values_of(size, rank, MANY, dtype)) for dtype in DTYPES_IN_PIECES]
        summed = [_digest(array) for array in session.run([ops.sum_of_one(one, name="many") for one in given])]
        counts = [MANY_ROWS + rank + other for other in range(size)]
        own = rows_to_all(rank, size)
        came, came_counts = session.run(ops.all_to_all(tf.constant(own), tf.constant(counts), name="many_rows"))
        return {"sums": summed, "rows": _digest(came), "counts": came_counts.tolist()}


def rows_to_all(rank: int, size: int) -> np.ndarray:
    """Returns the rows that a rank sends: int32 [rows, 101], rank after rank."""
    count = sum(MANY_ROWS + rank + other for other in range(size))
    return np.arange(count * 101, dtype=np.int32).reshape(count, 101) * (rank + 1)


def urgent(rank: int, size: int) -> dict[str, Any]:
    """What is needed in a later step, and what is needed first but begins later, at the same time. Tells for each try
    whether the latter came first."""
    with tf.Graph().as_default(), tf.Session() as session:

        def long_rows(count: int) -> tf.Tensor:
            return tf.fill([count * size, 1024], tf.constant(float(rank)))

        def ended(after: tf.Tensor) -> tf.Tensor:
            return tf.numpy_function(lambda _: np.float64(time.monotonic()), [tf.shape(after)], tf.float64)

        counts = tf.placeholder(tf.int32, [None])
        with stream("later", deadline_steps=1):
            later, _ = ops.all_to_all(long_rows(LATER_ROWS), counts * LATER_ROWS, name="later")
        begun = tf.numpy_function(_until_payloads_wait, [counts], tf.int32)
        first, _ = ops.all_to_all(long_rows(FIRST_ROWS), tf.ensure_shape(begun, [None]) * FIRST_ROWS, name="first")
        times = [session.run([ended(first), ended(later)], {counts: [1] * size}) for _ in range(TRIES)]
        return {"is_first": [bool(first_secs < later_secs) for first_secs, later_secs in times]}


def _until_payloads_wait(counts: np.ndarray) -> np.ndarray:
    """Returns `counts` when this rank offers a payload."""
    while not native_ops().transfers():
        time.sleep(0.001)
    return counts


def late(rank: int, size: int) -> dict[str, Any]:
    """The same sums while the ranks come in every order."""
    with tf.Graph().as_default(), tf.Session() as session:
        given = [tf.constant(values_of(size, rank, length, "float32")) for length in LENGTHS]
        summed = [ops.sum_of_one(one, name="late") for one in given]
        found = []
        for order in itertools.permutations(range(size)):
            time.sleep(order[rank] * LATE_SECS)
            found.append([_hex(array) for array in session.run(summed)])
        return {"sums": found}


def rows(rank: int, size: int) -> dict[str, Any]:
    """Rows of all dtypes: of all ranks, and to each rank."""
    with tf.Graph().as_default(), tf.Session() as session:
        found = {}
        for dtype in (*NUMBERS, "bool"):
            for width in (0, 1, 3000):
                own = tf.cast(tf.fill([rank, width], rank % 2), dtype)
                gathered = ops.concat_over_ranks(own, name="gathered")
                counts = tf.constant([(rank + other) % 3 for other in range(size)], tf.int32)
                sent = tf.cast(tf.fill([sum((rank + other) % 3 for other in range(size)), width], rank % 2), dtype)
                came, came_counts = ops.all_to_all(sent, counts, name="came")
                of_chief = ops.from_chief(tf.cast(tf.fill([width], (rank + 1) % 2), dtype), name="of_chief")
                to_numbers = [tf.cast(one, tf.int32) for one in (gathered, came, of_chief)]
                fetched = session.run([*to_numbers, came_counts])
                found[f"{dtype} {width}"] = [array.tolist() for array in fetched]
        return found


def waiting(rank: int, _size: int) -> dict[str, Any]:
    """How much CPU time the communication thread needs while it waits for rank 0, and how often it sleeps."""
    found = {}
    with tf.Graph().as_default(), tf.Session() as session:
        tensor = ops.sum_of_one(tf.ones([1000]), name="waits")
        for name, (times, late_secs) in WAITS.items():
            cpu_secs = waited_secs = 0.0
            sleeps = 0
            for _ in range(times):
                session.run(tensor)  # all ranks are here
                sleeps_before = native_ops().sleeps()
                cpu_before, started = _cpu_secs_of_thread("exchanges"), time.monotonic()
                if rank == 0:
                    time.sleep(late_secs)
                session.run(tensor)
                waited_secs += time.monotonic() - started
                cpu_secs += _cpu_secs_of_thread("exchanges") - cpu_before
                sleeps += native_ops().sleeps() - sleeps_before
            found[name] = {"cpu_secs": cpu_secs, "secs": waited_secs, "sleeps": sleeps}
        return found


def idle(_rank: int, _size: int) -> dict[str, Any]:
    """How often the communication thread sleeps while nothing is exchanged. Unlike its CPU time, this does not depend
    on other work of the machine."""
    while native_ops().transfers() > 0:
        time.sleep(LATE_SECS)
    before, started = native_ops().sleeps(), time.monotonic()
    time.sleep(IDLE_SECS)
    return {"sleeps": native_ops().sleeps() - before, "secs": time.monotonic() - started}


def _cpu_secs_of_thread(name: str) -> float:
    """Returns the CPU time that a thread of this process has used."""
    clock = (~int(_thread(name).name) << 3) | 6  # the clock of its CPU time, as in Linux's CPUCLOCK_PERTHREAD
    return time.clock_gettime(clock)


def _thread(name: str) -> Path:
    """Returns the folder in which Linux describes a thread of this process."""
    (found,) = (task for task in Path("/proc/self/task").iterdir() if (task / "comm").read_text().strip() == name)
    return found


def places(_rank: int, _size: int) -> dict[str, Any]:
    """What the ops say about this process."""
    with tf.Graph().as_default(), tf.Session() as session:
        return {"places": [int(one) for one in session.run([ops.rank_op(), ops.size_op(), ops.local_rank_op()])]}


CASES = (
    sums,
    in_pieces,
    urgent,
    late,
    rows,
    ended_rows,
    in_loops,
    streams,
    sessions,
    sessions_beside,
    after_a_gap,
    faults,
    uncounted,
    ahead,
    cancelled,
    left_out,
    waiting,
    idle,
    places,
)


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array)).hexdigest()


def _without_the_last(rank: int, size: int) -> str:
    """The last rank ends, and the others begin an exchange."""
    if rank == size - 1:
        return ""
    with tf.Graph().as_default(), tf.Session() as session:
        try:
            session.run(ops.sum_of_one(tf.ones([3]), name="without_the_last"))
        except tf.errors.AbortedError as error:
            return str(error)
    return "no error"


def _hex(array: np.ndarray) -> str:
    return np.asarray(array).tobytes().hex()


def _meet(folder: Path, rank: int, size: int) -> None:
    """Waits without an exchange until all ranks are here. Otherwise the messages of the next case come early while
    another rank still counts what the last case has left."""
    folder.mkdir(exist_ok=True)
    (folder / str(rank)).touch()
    while len(list(folder.iterdir())) < size:
        time.sleep(LATE_SECS)


def main(folder: Path, names: Sequence[str]) -> None:
    """Runs the cases of these names, or all."""
    choose(BACKENDS["native"])
    with tf.Graph().as_default(), tf.Session() as session:
        early = ops.sum_of_one(tf.ones([1]), name="early")
        try:
            session.run(early)
            said = "no error"
        except tf.errors.OpError as error:
            said = f"{type(error).__name__}: {error}"
    rank, size = ops.join()
    found: dict[str, Any] = {"early": said}
    chosen = [case for name in names for case in CASES if case.__name__ == name] or CASES
    for number, case in enumerate(chosen):
        found[case.__name__] = case(rank, size)
        _meet(folder / f"after_{number}_{case.__name__}", rank, size)
    found["without_the_last"] = _without_the_last(rank, size)
    (folder / f"rank_{rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    tf.disable_eager_execution()
    main(Path(sys.argv[1]), sys.argv[2:])
