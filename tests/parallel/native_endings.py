"""Cases of native_script.py: exchanges that fail, are cancelled or are left out."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.collectives import ops
from parallax_runner.collectives.native.ops import native_ops

LATE_SECS = 0.1
SLOW_SECS = 1.0
LONG_SECS = 3.0
PATIENCE_SECS = 20.0
ENDINGS = 50
LONG_WIDTH = 5000  # floats of a row, whose bytes do not travel with the header
AHEAD = 300  # exchanges that a rank begins while the others do nothing
CANCELLED = ("sum", "gather", "all_to_all", "broadcast")


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


def cancelled(rank: int, size: int) -> dict[str, Any]:
    """Rank 0 closes its session while its exchange waits for the last rank. The ranks between wait too."""
    found: dict[str, Any] = {}
    for kind in CANCELLED:
        with tf.Graph().as_default():
            session, later = tf.Session(), tf.Session()
            exchange = _long_exchange(kind, size)
            if rank == 0:
                _wait_until(lambda: native_ops().transfers() == 0)
                _close_when(lambda: native_ops().transfers() > 0, session)
            if rank == size - 1:
                time.sleep(SLOW_SECS)
            said = _said(partial(session.run, exchange))
            found[kind] = {"said": said, "after": float(np.ravel(later.run(exchange))[-1])}
            session.close()
            later.close()
    return found | _left()


def _long_exchange(kind: str, size: int) -> tf.Tensor:
    """Returns an exchange that cannot end before all ranks have begun it. Its bytes do not travel with the headers."""
    rows, name = tf.ones([size, LONG_WIDTH]), f"cancelled_{kind}"
    if kind == "sum":
        return ops.sum_of_one(rows, name=name)
    if kind == "gather":
        return ops.concat_over_ranks(rows, name=name)
    if kind == "broadcast":
        return ops.from_chief(rows, name=name)
    return ops.all_to_all(rows, tf.ones([size], tf.int32), name=name)[0]


def _close_when(has_begun: Callable[[], bool], session: tf.Session) -> None:
    """Closes the session in another thread, when a coordinator stops this thread."""
    coordinator = tf.train.Coordinator()

    def stop() -> None:
        _wait_until(has_begun)
        coordinator.request_stop()

    def close() -> None:
        coordinator.wait_for_stop()
        session.close()

    for run in (stop, close):
        threading.Thread(target=run, daemon=True).start()


def _wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECS
    while not is_true() and time.monotonic() < deadline:
        time.sleep(LATE_SECS / 10)


def left_out(rank: int, size: int) -> dict[str, Any]:
    """Rank 0's run ends between two exchanges, because its session is closed or because of a deadline. The others wait
    in the second exchange, except for a late last rank, which begins it when it has ended on all of them. Rank 0 begins
    no other run of this session."""
    late = {f"late_{number}": _ended_between(rank, is_closed=True, is_late=rank == size - 1) for number in range(10)}
    return late | {"closed": _ended_between(rank), "deadline": _ended_between(rank, is_closed=False)} | _left()


def _ended_between(rank: int, *, is_closed: bool = True, is_late: bool = False) -> dict[str, Any]:
    is_between = threading.Event()

    def note(value: np.ndarray) -> np.ndarray:
        is_between.set()
        if is_late:
            time.sleep(LATE_SECS)
        return value

    with tf.Graph().as_default():
        tokens = tf.FIFOQueue(1, [tf.float32], [[]])
        put = tokens.enqueue(1.0)
        first = ops.sum_of_one(tf.ones([]), name="before_the_end")
        with tf.control_dependencies([tf.numpy_function(note, [first], tf.float32)]):
            token = tokens.dequeue()
        second = ops.sum_of_one(token, name="behind_the_end")
        session, later = tf.Session(), tf.Session()
        session.run(first)  # all ranks are here
        deadline_secs = PATIENCE_SECS
        if rank != 0:
            session.run(put)
        elif is_closed:
            _close_when(is_between.is_set, session)
        else:
            deadline_secs = LONG_SECS
        options = tf.RunOptions(timeout_in_ms=int(deadline_secs * 1000))
        said = _said(partial(session.run, second, options=options))
        later.run(put)
        found = {"said": said, "after": float(later.run(second))}
        session.close()
        later.close()
        return found


def _said(run: Callable[[], Any]) -> str:
    try:
        run()
    except tf.errors.OpError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
