"""What the native exchanges do, on one rank: `native_script.py FOLDER`. Writes the results to rank_RANK.json."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.collectives import ops
from parallax_runner.collectives.chosen import BACKENDS, choose
from parallax_runner.collectives.native.ops import native_ops
from parallax_runner.collectives.streams import stream

NUMBERS = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "int64")
LENGTHS = (0, 1, 3, 5000, 100_000)
LATE_SECS = 0.1
ENDINGS = 50
LONG_WIDTH = 5000  # floats of a row, whose bytes do not travel with the header
MANY = 700_003
DTYPES_IN_PIECES = ("float16", "float32", "int64")
MANY_ROWS = 3001
LATER_ROWS, FIRST_ROWS = 16_384, 4096  # of 4 KiB, to each rank
TRIES = 5
PATIENCE_SECS = 20.0
SLOW_SECS = 1.0
LONG_SECS = 3.0
AHEAD = 300  # exchanges that a rank begins while the others do nothing


def values_of(rank: int, length: int, dtype: str) -> np.ndarray:
    """Returns numbers whose sum depends on the order of additions, if they are of floating point."""
    drawn = np.random.default_rng([rank, length]).normal(size=length) * 10.0 ** (rank * 2)
    is_whole = "int" in dtype
    return (np.abs(drawn) % 50 if is_whole else drawn).astype(tf.as_dtype(dtype).as_numpy_dtype)


def sums(rank: int, _size: int) -> dict[str, Any]:
    """Sums of all dtypes and of several lengths, alone and together."""
    with tf.Graph().as_default(), tf.Session() as session:
        found = {}
        for dtype in NUMBERS:
            given = [tf.constant(values_of(rank, length, dtype)) for length in LENGTHS]
            together = ops.sum_over_ranks(given, name="together")
            alone = [ops.sum_of_one(one, name="alone") for one in given]
            for name, tensors in {"together": together, "alone": alone}.items():
                found[f"{dtype} {name}"] = [_hex(array) for array in session.run(tensors)]
        return found


def in_pieces(rank: int, size: int) -> dict[str, Any]:
    """Sums and rows that are carried in several pieces, of lengths that are no multiple of a piece."""
    with tf.Graph().as_default(), tf.Session() as session:
        given = [tf.constant(values_of(rank, MANY, dtype)) for dtype in DTYPES_IN_PIECES]
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
        given = [tf.constant(values_of(rank, length, "float32")) for length in LENGTHS]
        summed = [ops.sum_of_one(one, name="late") for one in given]
        found = []
        for order in itertools.permutations(range(size)):
            time.sleep(order[rank] * LATE_SECS)
            found.append([_hex(array) for array in session.run(summed)])
        return {"sums": found}


def ended_rows(rank: int, size: int) -> dict[str, Any]:
    """Exchanges of long rows that end with an error, because one rank has longer ones."""
    with tf.Graph().as_default(), tf.Session() as session:
        table = tf.placeholder(tf.float32, [None, None])
        gathered, good = ops.concat_over_ranks(table, name="ended"), ops.concat_over_ranks(table, name="good")
        ended = 0
        for number in range(ENDINGS):
            width = LONG_WIDTH + (rank == size - 1)
            try:
                session.run(gathered, {table: np.full([1, width], number, np.float32)})
            except tf.errors.AbortedError:
                ended += 1
        right = session.run(good, {table: np.full([1, LONG_WIDTH], rank, np.float32)})
        deadline = time.monotonic() + PATIENCE_SECS
        while native_ops().transfers() and time.monotonic() < deadline:  # another rank may be late with its last rows
            time.sleep(SLOW_SECS)
        return {"ended": ended, "right": right[:, 0].tolist(), "transfers": native_ops().transfers()}


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


def in_loops(rank: int, _size: int) -> dict[str, Any]:
    """Exchanges inside loops, whose iterations may overtake each other on one rank."""

    def step(number: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return number + 1, total + ops.sum_of_one(tf.cast(number, tf.float32) * (rank + 1), name="in_loop")

    with tf.Graph().as_default(), tf.Session() as session:
        loops = [tf.while_loop(lambda number, _: number < 9, step, [0, 0.0], parallel_iterations=n)[1] for n in (1, 10)]
        return {"totals": [float(one) for one in session.run(loops)]}


def streams(rank: int, _size: int) -> dict[str, Any]:
    """Two runs of one session at the same time, in another order on each rank."""
    import threading

    with tf.Graph().as_default(), tf.Session() as session:
        own = tf.placeholder(tf.float32, [])
        of_step = ops.sum_of_one(own, name="of_step")
        with stream("beside"):
            beside = ops.sum_of_one(own, name="beside")
        found: dict[str, list[float]] = {"step": [], "beside": []}

        def run(name: str, tensor: tf.Tensor) -> None:
            for number in range(50):
                found[name].append(float(session.run(tensor, {own: number + rank})))

        threads = [threading.Thread(target=run, args=one) for one in (("step", of_step), ("beside", beside))]
        for thread in threads if rank % 2 else reversed(threads):
            thread.start()
        for thread in threads:
            thread.join()
        return found


def sessions(rank: int, _size: int) -> dict[str, Any]:
    """Two sessions that alternate, and train ops that alternate within a session."""
    with tf.Graph().as_default() as graph:
        first, second = (ops.sum_of_one(tf.constant([1.0 + rank, number]), name="one") for number in (10.0, 20.0))
        with tf.Session(graph=graph) as one, tf.Session(graph=graph) as other:
            fetched = [session.run(tensor) for session in (one, other, one) for tensor in (first, second, first)]
    return {"found": [array.tolist() for array in fetched]}


def faults(rank: int, size: int) -> dict[str, Any]:
    """Exchanges that fail, each followed by one that must be right."""
    found: dict[str, Any] = {}
    is_last = rank == size - 1
    with tf.Graph().as_default(), tf.Session() as session:
        given, table = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32, [None, None])
        checked = tf.debugging.check_numerics(tf.numpy_function(_slowly, [given], tf.float32), "not a number here")
        summed, gathered = ops.sum_of_one(given, name="summed"), ops.concat_over_ranks(table, name="gathered")
        dtype = ops.sum_of_one(tf.ones([3], tf.float64 if is_last else tf.float32), name="dtype")
        kind = (ops.concat_over_ranks if is_last else ops.sum_of_one)(tf.ones([3]), name="kind")
        good, of_chief = ops.sum_of_one(tf.ones([50_000]), name="good"), ops.from_chief(given, name="of_chief")

        def tried(name: str, run: Callable[[], Any]) -> None:
            started = time.monotonic()
            try:
                run()
                said = "no error"
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            secs = time.monotonic() - started
            found[name] = {"said": said, "secs": secs, "after": float(session.run(good)[0])}

        tried("length", lambda: session.run(summed, {given: [1.0] * (4 if is_last else 3)}))
        tried("width", lambda: session.run(gathered, {table: [[1.0] * (3 if is_last else 2)]}))
        tried("shape", lambda: session.run(of_chief, {given: [1.0] * (9 if is_last else 8)}))
        tried("dtype", lambda: session.run(dtype))
        tried("kind", lambda: session.run(kind))
        tried("local", lambda: _failing_alone(session, [good, checked], given, is_last=is_last))
        tried("deadline", lambda: _late(session, good, rank))
        tried("skipped", lambda: _skipped(session, good, summed, given, rank))
    return found


def _slowly(values: np.ndarray) -> np.ndarray:
    """Returns the values after a while, so that the exchanges of the run have begun."""
    time.sleep(LATE_SECS)
    return values


def _failing_alone(session: tf.Session, fetches: list[Any], given: tf.Tensor, *, is_last: bool) -> None:
    """The last rank fails in a run whose exchange the others have not begun yet."""
    if not is_last:
        time.sleep(SLOW_SECS)
    session.run(fetches, {given: [float("nan") if is_last else 1.0]})


def _late(session: tf.Session, good: tf.Tensor, rank: int) -> None:
    """Rank 0 gives up before the other ranks come."""
    if rank == 0:
        session.run(good, options=tf.RunOptions(timeout_in_ms=int(SLOW_SECS * 1000)))
    time.sleep(LONG_SECS)
    session.run(good)


def _skipped(session: tf.Session, good: tf.Tensor, summed: tf.Tensor, given: tf.Tensor, rank: int) -> None:
    """Rank 0 leaves an exchange out that the others wait for, and begins its next run."""
    try:
        session.run(summed if rank == 0 else [summed, good], {given: [1.0]})
    finally:
        session.run(summed, {given: [1.0]})


def uncounted(rank: int, size: int) -> dict[str, Any]:
    """Runs that fail on the last rank before it has begun an exchange, and that only this rank repeats."""
    with tf.Graph().as_default(), tf.Session() as session:
        given = tf.placeholder(tf.float32, [])
        with tf.control_dependencies([tf.debugging.check_numerics(given, "not a number here")]):
            summed = ops.sum_of_one(tf.identity(given), name="after_check")
        found = []
        for number in range(5):
            if rank == size - 1 and number % 2:
                with contextlib.suppress(tf.errors.InvalidArgumentError):
                    session.run(summed, {given: float("nan")})
                time.sleep(SLOW_SECS / 2)  # the others wait in this run
            found.append(float(session.run(summed, {given: number * 10.0 + rank})))
        return {"found": found}


def ahead(rank: int, size: int) -> dict[str, Any]:
    """Rank 0 begins its runs before the others do: broadcasts one after the other, and many exchanges at once."""
    with tf.Graph().as_default(), tf.Session() as session:
        of_chief = ops.from_chief(tf.fill([1000], float(rank)), name="of_chief")
        many = [ops.sum_of_one(tf.fill([1000], float(rank)), name=f"ahead_{number}")[0] for number in range(AHEAD)]
        last = ops.sum_of_one(tf.constant(float(rank)), name="last")  # without it, no run of the others succeeds
        checked = tf.debugging.check_numerics(tf.constant(float("nan")), "not a number here")
        session.run(of_chief)
        if rank != 0:
            time.sleep(SLOW_SECS)
        started = time.monotonic()
        came = [float(session.run(of_chief)[0]) for _ in range(3)]
        secs = time.monotonic() - started
        failed = sum(_fails(session, [*many, checked]) for _ in range(3)) if rank == 0 else 0
        sums = None
        while sums is None:
            with contextlib.suppress(tf.errors.AbortedError):  # the runs that failed on rank 0
                *sums, _ = session.run([*many, last])
        found = sorted({float(one) for one in sums})
        return {"came": came, "secs": secs, "failed": failed, "sums": [*found, float(session.run(last))]} | _left()


def _fails(session: tf.Session, fetches: list[tf.Tensor]) -> bool:
    try:
        session.run(fetches)
    except tf.errors.InvalidArgumentError:
        return True
    return False


def _left() -> dict[str, int]:
    """Returns what has come early or is under way when all has been exchanged."""
    deadline = time.monotonic() + PATIENCE_SECS
    while (native_ops().transfers() or native_ops().early()) and time.monotonic() < deadline:
        time.sleep(SLOW_SECS / 10)
    return {"early": native_ops().early(), "transfers": native_ops().transfers()}


def waiting(rank: int, _size: int) -> dict[str, Any]:
    """How much CPU time a process needs while it waits for another rank."""
    with tf.Graph().as_default(), tf.Session() as session:
        tensor = ops.sum_of_one(tf.ones([1000]), name="waits")
        session.run(tensor)
        if rank == 0:
            time.sleep(LONG_SECS)
        cpu, started = time.process_time(), time.monotonic()
        session.run(tensor)
        return {"cpu_secs": time.process_time() - cpu, "secs": time.monotonic() - started}


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
    faults,
    uncounted,
    ahead,
    waiting,
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


def main(folder: Path) -> None:
    """Runs all cases."""
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
    for case in CASES:
        found[case.__name__] = case(rank, size)
        _meet(folder / f"after_{case.__name__}", rank, size)
    found["without_the_last"] = _without_the_last(rank, size)
    (folder / f"rank_{rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    tf.disable_eager_execution()
    main(Path(sys.argv[1]))
