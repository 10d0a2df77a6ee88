"""The graphs that a calibration runs and times on one rank."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.calibration.samples import ASKED, EXCHANGE_BYTES, REPEATS, TENSORS, UPDATES, WARM_UP, Sample
from parallax_runner.collectives import ops as collectives
from parallax_runner.graph.devices import server_device
from parallax_runner.rewrite.every_route.merge import ascending, merge

TABLE_ROWS = 20_000
FLOAT_BYTES = 4


def exchanges(
    rank: int, *, ranks: int, server: int, servers: int, open_session: Callable[[tf.Graph], tf.Session]
) -> list[Sample]:
    """Times collectives, and pulls and pushes between this rank and server `server` of `servers`. All ranks run these
    operations at the same time. The returned times are measured on this rank."""
    worker_device = f"/job:worker/task:{rank}"
    with tf.Graph().as_default() as graph, tf.device(worker_device):
        together = collectives.sum_over_ranks([tf.zeros([])], name="together")[0].op
        asked = [(size, 1) for size in EXCHANGE_BYTES] + [(EXCHANGE_BYTES[0], tensors) for tensors in TENSORS]
        probes = [
            (Sample(kind, ranks, size * tensors, 0, 0.0, servers, tensors), ops)
            for size, tensors in asked
            for kind, ops in _exchanges(size, tensors, ranks, rank, server)
        ]
        with open_session(graph) as session:
            session.run(tf.global_variables_initializer())
            return [dataclasses.replace(made, secs=_secs(session, ops, together)) for made, ops in probes]


def work(open_session: Callable[[tf.Graph], tf.Session]) -> list[Sample]:
    """Times the updates and merges that ranks and servers perform. Runs in this process only."""
    with tf.Graph().as_default() as graph:
        # The ops are fetched separately instead of being grouped. TensorFlow would remove grouped ops as an
        # optimization, because nothing reads their results.
        probes = list(_work())
        with open_session(graph) as session:
            session.run(tf.global_variables_initializer())
            return [Sample(kind, 1, size, rows, _secs(session, ops)) for kind, size, rows, ops in probes]


def _exchanges(size: int, tensors: int, ranks: int, rank: int, server: int) -> Iterator[tuple[str, list[tf.Operation]]]:
    """Yields the kind and the ops of each exchange. The ops exchange `tensors` tensors of `size` bytes each at the same
    time. An alltoall is timed with one tensor only, because plans use it with one tensor only."""
    number = size // FLOAT_BYTES // ranks * ranks
    name = f"{size}_{tensors}"
    own = [_variable([number]).read_value() for _ in range(tensors)]
    yield "allreduce", [summed.op for summed in collectives.sum_over_ranks(own, name=f"allreduce_{name}")]
    named = ((one, f"allgather_{name}_{at}") for at, one in enumerate(own))
    yield "allgather", [collectives.concat_over_ranks(one, name=apart).op for one, apart in named]
    if tensors == 1:
        counts = tf.fill([ranks], number // ranks)
        yield "alltoall", [collectives.all_to_all(own[0], counts, name=f"alltoall_{name}")[0].op]
    pulled, kept = [], []
    for at, one in enumerate(own):
        with tf.device(server_device(server)):
            # Each rank has its own variables, so that no read waits for another rank's write.
            there = _variable([number], shared=f"pulled_{name}_{at}_{rank}")
            # An op on the server assigns the value, because TensorFlow sends a value only if an op reads it.
            kept.append(_variable([number], shared=f"pushed_{name}_{at}_{rank}").assign(one, read_value=False))
            asked = there.read_value()
        pulled.append(tf.identity(asked).op)
    yield "pull", pulled
    yield "push", kept


def _work() -> Iterator[tuple[str, int, int, list[tf.Operation]]]:
    draw = np.random.default_rng(1)
    for rows, width in UPDATES:
        size = rows * width * FLOAT_BYTES
        table, slot = _variable([TABLE_ROWS, width]), _variable([TABLE_ROWS, width])
        ids = tf.constant(np.sort(draw.choice(TABLE_ROWS, rows, replace=False)), tf.int64)
        values = _variable([rows, width]).read_value()
        update = tf.raw_ops.ResourceSparseApplyAdagrad(
            var=table.handle, accum=slot.handle, lr=tf.constant(0.1), grad=values, indices=ids
        )
        yield "apply_sparse", size, rows, [update]
        # Words repeat within a batch. Here, each word occurs twice.
        again = tf.constant(draw.choice(TABLE_ROWS, rows // 2).repeat(2), tf.int64)
        yield "merge", size, rows, [tensor.op for tensor in merge(values, again)]
        accumulator = tf.SparseConditionalAccumulator(tf.float32, shape=[None, width], reduction_type="SUM")
        pushes = [accumulator.apply_grad(ids, values, local_step=tf.constant(tf.int64.max, tf.int64)) for _ in "12"]
        with tf.control_dependencies(pushes):
            taken = accumulator.take_indexed_slices_grad(2)
        yield "server", 2 * size, 2 * rows, [taken.values.op]
    for rows in ASKED:
        words = tf.get_variable(f"asked_{rows}", initializer=draw.permutation(rows).repeat(2), use_resource=True)
        yield "ask", 0, rows, [tensor.op for tensor in ascending(words.read_value())]
    for size in EXCHANGE_BYTES:
        dense, slot = _variable([size // FLOAT_BYTES]), _variable([size // FLOAT_BYTES])
        values = _variable([size // FLOAT_BYTES]).read_value()
        update = tf.raw_ops.ResourceApplyAdagrad(var=dense.handle, accum=slot.handle, lr=tf.constant(0.1), grad=values)
        yield "apply_dense", size, 0, [update]


def _variable(shape: list[int], shared: str | None = None) -> tf.Variable:
    """Creates a variable whose values are all 1. Variables on a server must have unique names."""
    with tf.variable_scope("", reuse=tf.AUTO_REUSE):
        name = shared or tf.get_default_graph().unique_name("own")
        return tf.get_variable(name, shape, tf.float32, initializer=tf.ones_initializer(), use_resource=True)


def _secs(session: tf.Session, ops: list[tf.Operation], together: tf.Operation | None = None) -> float:
    """Returns the median time of a run of `ops` in seconds. With `together`, all ranks begin each repetition at the
    same time."""
    secs = []
    for _ in range(WARM_UP + REPEATS):
        if together is not None:
            session.run(together)
        begin = time.perf_counter()
        session.run(ops)
        secs.append(time.perf_counter() - begin)
    return statistics.median(secs[WARM_UP:])
