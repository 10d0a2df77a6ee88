"""A user's script for mpi_collectives: `mpirun -np N python mpi_script.py FOLDER`; each rank writes its results."""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner import mpi_collectives as mpi

# The values of mpirun; the cases compare them with those of the ops.
RANK, RANKS = (int(os.environ.get(f"OMPI_COMM_WORLD_{what}", "0")) for what in ("RANK", "SIZE"))
DTYPES = ("float16", "float32", "float64", "int32", "int64")
OPTIMIZERS = {
    "gradient_descent": lambda: tf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: tf.train.AdamOptimizer(0.1),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.1),
}
STEPS, ROWS, WIDTH, BATCH = 4, 7, 3, 4


def told(session: tf.Session, fetches: Any, feeds: dict | None = None) -> str:
    """Returns «kind: message» of the error from running the fetches; empty if there is none."""
    try:
        session.run(fetches, feeds)
    except tf.errors.OpError as error:
        return f"{type(error).__name__}: {error.message}"
    return ""


def refused(build: Callable[[], Any]) -> str:
    """Returns the same for an error while the graph is built."""
    try:
        build()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def evaluate(fetches: Any, feeds: dict | None = None) -> Any:
    """Evaluates the fetches in a new session."""
    with mpi.Session() as session:
        return session.run(fetches, feeds)


def before_init() -> dict[str, Any]:
    """Builds the whole graph before anything is initialised, with init as an op."""
    weights = tf.get_variable("weights", [2], initializer=tf.ones_initializer())
    mpi.DistributedOptimizer(tf.train.AdamOptimizer()).minimize(tf.reduce_sum(tf.square(weights)))
    ops = {"rank": mpi.rank(), "size": mpi.size(), "local_rank": mpi.local_rank()}
    ops["sum"] = mpi.allreduce(tf.placeholder_with_default(1.0, []), average=False)
    ops["rows"] = mpi.allgather(tf.placeholder_with_default([1.0], [1]))
    init = mpi.init()
    with tf.Session() as session:
        early = {name: told(session, op) for name, op in ops.items()}
        session.run(init)
        session.run(init)
        return {"early": early, "after": session.run(ops), "from_mpirun": [RANK, RANKS]}


def dtypes() -> dict[str, Any]:
    """Sum, mean, concatenation and IndexedSlices of each dtype."""
    found = {}
    for name in DTYPES:
        tensor = tf.constant([RANK + 1, 6], name)
        rows = tf.constant([[RANK, 1]] * (RANK + 1), name)
        slices = mpi.allreduce(tf.IndexedSlices(rows, tf.range(RANK + 1)))
        fetches = [
            mpi.allreduce(tensor, average=False),
            mpi.allreduce(tensor),
            mpi.allgather(rows),
            slices.values,
            slices.indices,
        ]
        found[name] = [[str(array.dtype), array] for array in evaluate(fetches)]
    return found


def shapes() -> dict[str, Any]:
    """Scalars, many dimensions, empty tensors; the static shapes while the graph is built."""
    cube = tf.reshape(tf.range(24.0), [2, 3, 4]) * (RANK + 1)
    none, scalar = tf.zeros([0, 2]), tf.constant(2.0 + RANK)
    fed = tf.placeholder(tf.float32, [None, 2])
    fetches = {
        "cube": mpi.allreduce(cube, average=False),
        "scalar": mpi.allreduce(scalar, average=False),
        "empty": mpi.allreduce(none),
        "fed": mpi.allreduce(fed, average=False),
        "rows": mpi.allgather(cube),
        "rows_of_the_last_only": mpi.allgather(tf.fill([RANK // (RANKS - 1), 2], 5.0)),
        "no_rows": mpi.allgather(none),
        "fed_rows": mpi.allgather(fed),
    }
    static = {name: str(tensor.shape) for name, tensor in fetches.items()}
    return {"values": evaluate(fetches, {fed: np.full((1, 2), RANK)}), "static": static}


def integers() -> list[Any]:
    """The mean of integers is rounded down, also below zero."""
    return list(evaluate([mpi.allreduce(tf.constant([RANK, -RANK], dtype)) for dtype in ("int32", "int64")]))


def variables() -> dict[str, Any]:
    """Variables of both kinds, and a plain Python number."""
    resource = tf.get_variable("resource", initializer=[1.0 + RANK, 2.0], use_resource=True)
    reference = tf.get_variable("reference", initializer=[3.0 + RANK, 4.0], use_resource=False)
    fetches = {"resource": mpi.allreduce(resource), "reference": mpi.allreduce(reference), "number": mpi.allreduce(1.5)}
    fetches["rows"] = mpi.allgather(resource)
    with mpi.Session() as session:
        session.run(tf.global_variables_initializer())
        return {"values": session.run(fetches)}


def indexed_slices() -> dict[str, Any]:
    """Different numbers of rows; indices that two ranks share."""
    slices = tf.IndexedSlices(tf.fill([RANK + 1, 2], 6.0), tf.range(RANK + 1, dtype=tf.int64), tf.constant([9, 2]))
    mean, total = mpi.allreduce(slices), mpi.allreduce(slices, average=False)
    types = sorted(op.type for op in tf.get_default_graph().get_operations() if "Horovod" in op.type)
    found = evaluate([mean, total])
    return {"mean": list(found[0]), "sum": list(found[1]), "ops": types}


def names() -> list[float]:
    """Ranks match collectives by given names."""
    return evaluate(mpi.allgather(tf.constant([float(RANK)], name=f"own_{RANK}"), name="given"))


def another_tensor_on_each_rank() -> dict[str, Any]:
    """Each rank has all tensors, and takes that of its number: other names are matched by order."""
    tensors = [tf.constant([[float(number)] * 2] * (number + 1)) for number in range(RANKS)]
    numbers = [tf.constant(10.0 * number) for number in range(RANKS)]
    with tf.name_scope("within"):
        scoped = mpi.allgather(tensors[RANK])
    fetches = {
        "rows": mpi.allgather(tensors[RANK]),
        "sum": mpi.allreduce(numbers[RANK], average=False),
        "again": mpi.allgather(tensors[RANKS - 1 - RANK]),
        "scoped": scoped,
    }
    names = [op.name for op in tf.get_default_graph().get_operations() if "Horovod" in op.type]
    return {"values": evaluate(fetches), "names": names}


def mismatches() -> dict[str, Any]:
    """Each mismatch is an error that names the tensor, on every rank; later collectives work."""
    first = RANK == 0
    wide, long = tf.zeros([2, 3 if first else 4]), tf.zeros([2 if first else 3])
    kind = tf.zeros([2], tf.float32 if first else tf.float64)
    whole = tf.zeros([2], tf.int32 if first else tf.int64)
    deep = tf.zeros([2, 2] if first else [2, 2, 2])
    lone = tf.zeros([] if first else [1])
    wrong = {
        "shape": mpi.allreduce(tf.identity(long, "uneven")),
        "dtype": mpi.allreduce(tf.identity(kind, "mixed")),
        "scalar": mpi.allreduce(tf.identity(lone, "lone")),
        "width": mpi.allgather(tf.identity(wide, "wide")),
        "depth": mpi.allgather(tf.identity(deep, "deep")),
        "kind": mpi.allgather(tf.identity(whole, "whole")),
        "slices": mpi.allreduce(tf.IndexedSlices(tf.identity(wide, "rows"), tf.range(2))).values,
        "last": mpi.allreduce(tf.zeros([3 if RANK == RANKS - 1 else 2], name="last")),
    }
    same = mpi.allreduce(tf.constant([1.0, 2.0]), average=False)
    found = {}
    with mpi.Session() as session:
        for name, tensor in wrong.items():
            found[name] = [told(session, tensor), session.run(same)]
    return found


def mismatch_in_a_later_step() -> list[Any]:
    """One op, run with equal, unequal and again equal shapes."""
    fed = tf.placeholder(tf.float32, [None], name="fed")
    total = mpi.allreduce(fed, average=False)
    found: list[Any] = []
    with mpi.Session() as session:
        for step in range(6):
            length = 2 + (RANK if step in (2, 4) else 0)
            error = told(session, total, {fed: np.ones(length)})
            found.append(error or session.run(total, {fed: np.ones(2)}))
    return found


def refusals() -> dict[str, str]:
    """Errors found while the graph is built."""
    unknown = tf.placeholder(tf.float32, None, name="unknown")
    with mpi.Session() as session:
        fed_scalar = told(session, mpi.allgather(unknown), {unknown: 1.0})
    return {
        "allreduce": refused(lambda: mpi.allreduce(tf.constant([True], name="flag"))),
        "bfloat16": refused(lambda: mpi.allreduce(tf.zeros([2], tf.bfloat16, name="brain"))),
        "allgather": refused(lambda: mpi.allgather(tf.constant(["a"], name="word"))),
        "scalar": refused(lambda: mpi.allgather(tf.constant(1.0, name="lone"))),
        "slices": refused(lambda: mpi.allreduce(tf.IndexedSlices(tf.zeros([1], tf.complex64, name="wave"), [0]))),
        "keras": refused(lambda: mpi.DistributedOptimizer("sgd")),
        "fed_scalar": fed_scalar,
    }


def gradients() -> dict[str, Any]:
    """No gradients flow through, as in the original."""
    weights = tf.get_variable("weights", [2], initializer=tf.ones_initializer())
    loss = tf.reduce_sum(weights)
    rows = mpi.allgather(tf.reshape(loss, [1]))
    return {
        "allreduce": [gradient is None for gradient in tf.gradients(mpi.allreduce(loss), [weights])],
        "allgather": [gradient is None for gradient in tf.gradients(rows, [weights])],
        "minimize": refused(lambda: tf.train.GradientDescentOptimizer(0.1).minimize(mpi.allreduce(loss))),
    }


def constants() -> list[float]:
    """Collectives of constants do not run when one rank's graph is optimized once more, for example for a trace."""
    total = mpi.allreduce(tf.constant(1.0 + RANK), average=False)
    rows = tf.reduce_sum(mpi.allgather(tf.constant([2.0])))
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    found = []
    with mpi.Session() as session:
        for step in range(5):
            traced = {"options": options, "run_metadata": tf.RunMetadata()} if step == 2 and RANK == 0 else {}
            found += session.run([total, rows], **traced)
    return found


def sessions() -> dict[str, Any]:
    """One device and one thread between ops, whatever the configuration says; the rest of it is kept."""
    asked = tf.ConfigProto(
        device_count={"CPU": 3},
        inter_op_parallelism_threads=4,
        intra_op_parallelism_threads=2,
        allow_soft_placement=True,
    )
    other = tf.Graph()
    with other.as_default():
        rank = mpi.rank()
    other.finalize()
    with mpi.Session(graph=other, config=asked) as session:
        return {
            "rank": session.run(rank),
            "is_session": isinstance(session, tf.Session),
            "devices": [device.name for device in session.list_devices()],
            "inter_op": session._config.inter_op_parallelism_threads,
            "own_threads": session._config.use_per_session_threads,
            "intra_op": session._config.intra_op_parallelism_threads,
            "soft_placement": session._config.allow_soft_placement,
            "given_is_unchanged": asked.inter_op_parallelism_threads,
        }


def batch(rank: int, step: int) -> dict[str, np.ndarray]:
    """Ids repeat within a rank and across ranks."""
    draw = np.random.default_rng([rank, step])
    return {"ids": draw.integers(0, ROWS, BATCH), "x": draw.normal(size=(BATCH, WIDTH)), "y": draw.normal(size=BATCH)}


def build_model(kind: str) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """A table (sparse gradient), weights (dense) and a variable without gradient; the mean of squares."""
    feeds = {
        "ids": tf.placeholder(tf.int64, [None]),
        "x": tf.placeholder(tf.float64, [None, WIDTH]),
        "y": tf.placeholder(tf.float64, [None]),
    }
    with tf.variable_scope(f"of_{kind}", use_resource=kind == "resource"):
        table = tf.get_variable("table", initializer=np.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH))
        weights = tf.get_variable("weights", initializer=np.linspace(0, 1, WIDTH))
        tf.get_variable("unused", initializer=np.ones(1))
    rows = tf.nn.embedding_lookup(table, feeds["ids"])
    return feeds, tf.reduce_mean(tf.square(tf.reduce_sum(rows * feeds["x"] * weights, axis=1) - feeds["y"]))


def optimizers() -> dict[str, Any]:
    """Returns all variables after a few steps, by optimizer and kind of variable."""
    found = {}
    for kind in ("resource", "reference"):
        for name, make in OPTIMIZERS.items():
            with tf.Graph().as_default():
                feeds, loss = build_model(kind)
                step = tf.train.get_or_create_global_step()
                train = mpi.DistributedOptimizer(make()).minimize(loss, global_step=step)
                with mpi.Session() as session:
                    session.run(tf.global_variables_initializer())
                    for number in range(STEPS):
                        given = batch(RANK, number)
                        session.run(train, {feeds[key]: given[key] for key in feeds})
                    found[f"{kind}/{name}"] = session.run({one.name: one for one in tf.global_variables()})
    return found


def example() -> dict[str, Any]:
    """Runs the old page's example as a separate script."""
    left = runpy.run_path(str(Path(__file__).with_name("mpi_example.py")))
    wanted = ("initial", "final", "losses", "rank", "batch_inputs", "batch_outputs")
    return {name: left[name] for name in wanted}


# The first case must find nothing initialised.
CASES = (
    *(before_init, dtypes, shapes, integers, variables, indexed_slices, names, mismatches, mismatch_in_a_later_step),
    another_tensor_on_each_rank,
    *(refusals, gradients, constants, sessions, optimizers, example),
)


def plain(value: Any) -> Any:
    """Converts arrays and NumPy numbers to JSON values."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


if __name__ == "__main__":
    tf.disable_v2_behavior()
    results = {}
    for case in CASES:
        with tf.Graph().as_default():
            results[case.__name__] = plain(case())
        # If a rank stops, its results show in which case.
        Path(sys.argv[1], f"rank_{RANK}.json").write_text(json.dumps(results))
    results["modules"] = sorted(name for name in sys.modules if name.startswith("parallax_runner"))
    Path(sys.argv[1], f"rank_{RANK}.json").write_text(json.dumps(results))
