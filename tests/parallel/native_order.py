"""Cases of native_script.py: exchanges that ranks begin in different orders, or not equally often."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.collectives import ops
from parallax_runner.collectives.streams import stream

LOOPS, ITERATIONS = 2, 5
TURN_SECS = 0.1
BESIDE = 10  # runs of each of two sessions
BESIDE_FIRST = 1000.0  # what the second of them adds to its values
FIRST, SECOND = 10.0, 20.0


def loop_value(loop: int, iteration: int) -> float:
    """Returns what rank 0 sends in an iteration of a loop. Rank r sends 10^r times as much."""
    return 1.0 + 100.0 * loop + iteration


def in_loops(rank: int, _size: int) -> dict[str, Any]:
    """Two loops in one graph whose iterations overtake each other, in another order on each rank. Tells the sums by
    iteration, and the order in which this rank began their exchanges."""
    turns = np.random.default_rng(rank).permutation(LOOPS * ITERATIONS).reshape(LOOPS, ITERATIONS)
    order: list[list[int]] = []

    def at_its_turn(loop: int, iteration: np.ndarray) -> np.ndarray:
        time.sleep(turns[loop, iteration] * TURN_SECS)
        order.append([loop, int(iteration)])
        return np.float64(loop_value(loop, int(iteration)) * 10**rank)

    def sums_of(loop: int) -> tf.Tensor:
        def step(iteration: tf.Tensor, found: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            own = tf.numpy_function(partial(at_its_turn, loop), [iteration], tf.float64)
            summed = ops.sum_of_one(tf.ensure_shape(own, []), name="in_loop")
            return iteration + 1, found.write(iteration, summed)

        given = (tf.constant(0), tf.TensorArray(tf.float64, ITERATIONS))
        _, found = tf.while_loop(lambda number, _: number < ITERATIONS, step, given, parallel_iterations=ITERATIONS)
        return found.stack()

    # Each iteration that waits has a thread.
    threads = tf.ConfigProto(inter_op_parallelism_threads=2 * LOOPS * ITERATIONS, use_per_session_threads=True)
    with tf.Graph().as_default(), tf.Session(config=threads) as session:
        sums = session.run([sums_of(loop) for loop in range(LOOPS)])
        return {"sums": np.asarray(sums).tolist(), "order": order}


def streams(rank: int, _size: int) -> dict[str, Any]:
    """Two runs of one session at the same time, in another order on each rank."""
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


def sessions_beside(rank: int, _size: int) -> dict[str, Any]:
    """Two sessions of one graph that run at the same time. On each rank, another one is late."""
    with tf.Graph().as_default() as graph:
        own = tf.placeholder(tf.float64, [])
        summed = ops.sum_of_one(own, name="beside")
    found: dict[str, list[float]] = {}

    def run(session: tf.Session, name: str, first: float, late_secs: float) -> None:
        time.sleep(late_secs)
        found[name] = [float(session.run(summed, {own: first + number + rank})) for number in range(BESIDE)]

    with tf.Session(graph=graph) as one, tf.Session(graph=graph) as other:
        for session in (one, other):  # sessions are numbered in the order of their first exchanges
            session.run(summed, {own: 0.0})
        late_secs = [TURN_SECS * (rank % 2), TURN_SECS * ((rank + 1) % 2)]
        runs = ((one, "one", 0.0, late_secs[0]), (other, "other", BESIDE_FIRST, late_secs[1]))
        threads = [threading.Thread(target=run, args=given) for given in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found


def after_a_gap(rank: int, size: int) -> dict[str, Any]:
    """The last rank leaves an exchange out of one run, so its op has run less often there than elsewhere. Afterwards
    train ops alternate: in the same session, in a second one, and in one of a graph that was rewritten."""
    with tf.Graph().as_default() as graph:
        own = tf.placeholder(tf.float64, [])
        first, second = (ops.sum_of_one(own + number, name="after_gap") for number in (FIRST, SECOND))
    rewritten = tf.Graph()
    with rewritten.as_default():
        tf.import_graph_def(graph.as_graph_def(), name="rewritten")
    found: dict[str, Any] = {}

    def alternate(session: tf.Session, prefix: str = "") -> list[float]:
        names = [prefix + tensor.name for tensor in (first, second, first, second)]
        feeds = [{f"{prefix}{own.name}": 100.0 * number + rank} for number in range(len(names))]
        return [float(session.run(name, fed)) for name, fed in zip(names, feeds, strict=True)]

    with tf.Session(graph=graph) as session:
        found["before"] = alternate(session)
        found["gap"] = _error_of(lambda: session.run(second if rank == size - 1 else [first, second], {own: 0.0}))
        found["after"] = alternate(session)
        with tf.Session(graph=graph) as other:
            found["second_session"] = alternate(other)
        found["back"] = alternate(session)
    with tf.Session(graph=rewritten) as session:
        found["rewritten"] = alternate(session, "rewritten/")
    return found


def _error_of(run: Callable[[], Any]) -> str:
    try:
        run()
    except tf.errors.AbortedError as error:
        return str(error)
    return "no error"
