"""Small models for tests that look at graphs: built, captured and planned in one line, in float64."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.classify import classify
from parallax_runner.analysis.variable_info import VariableInfo
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.comm_options import CommOptions, Lookahead
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.choose import choose_routes
from parallax_runner.planning.cost.constants import DEFAULTS
from parallax_runner.planning.cost.measured import Measured, RowStatistics
from parallax_runner.planning.cost.model import Cluster, CostModel
from parallax_runner.planning.explain import explain
from tests.single.plans import plan_of

ROWS, WIDTH, BATCH = 6, 2, 4
MANY_ROWS = 1000
FEATURES = {
    "ids": ((BATCH,), "int32"),
    "x": ((BATCH, WIDTH), "float64"),
    "y": ((BATCH,), "float64"),
}
OPTIMIZERS: dict[str, Callable[[], tf.train.Optimizer]] = {
    "gradient_descent": lambda: tf.train.GradientDescentOptimizer(0.05),
    "momentum": lambda: tf.train.MomentumOptimizer(0.05, 0.9),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.05),
    "adam": lambda: tf.train.AdamOptimizer(0.01),
    "rmsprop": lambda: tf.train.RMSPropOptimizer(0.01, momentum=0.5),
    "ftrl": lambda: tf.train.FtrlOptimizer(0.05, l1_regularization_strength=0.001),
}
Features = dict[str, tf.Tensor]
Process = Callable[[list[Any]], list[Any]]
GOLDEN = Path(__file__).parents[1] / "golden"


def clip(gradients: list[Any]) -> list[Any]:
    """By the global norm."""
    return tf.clip_by_global_norm(gradients, 0.3)[0]


def as_they_are(gradients: list[Any]) -> list[Any]:
    """No post-processing."""
    return gradients


def lookup_model(features: Features, *, pieces: int = 1, rows: int = ROWS) -> tf.Tensor:
    """[BATCH]: one lookup in «table» [rows, WIDTH], times the dense «weights» [WIDTH]."""
    partitioner = tf.fixed_size_partitioner(pieces) if pieces > 1 else None
    table = tf.get_variable("table", [rows, WIDTH], tf.float64, partitioner=partitioner)
    weights = tf.get_variable("weights", [WIDTH], tf.float64)
    return tf.reduce_sum(tf.nn.embedding_lookup(table, features["ids"]) * weights, axis=1)


def dense_model(features: Features) -> tf.Tensor:
    """[BATCH]: «weights» [WIDTH] alone."""
    return tf.reduce_sum(features["x"] * tf.get_variable("weights", [WIDTH], tf.float64), axis=1)


def sparse_model(features: Features) -> tf.Tensor:
    """[BATCH]: «table» [ROWS, WIDTH] alone."""
    table = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
    return tf.reduce_sum(tf.nn.embedding_lookup(table, features["ids"]) * features["x"], axis=1)


def routes_model(features: Features) -> tf.Tensor:
    """[BATCH]: a variable for each route that comm=auto may mix in a plan without servers: «frequent» has few rows,
    «rare» has many, «inner» cannot leave its rank, and «weights» is dense."""
    frequent = tf.get_variable("frequent", [ROWS, WIDTH], tf.float64)
    rare = tf.get_variable("rare", [MANY_ROWS, WIDTH], tf.float64)
    inner = tf.get_variable("inner", [MANY_ROWS, WIDTH], tf.float64)
    weights = tf.get_variable("weights", [WIDTH], tf.float64)
    looked_up = tf.function(lambda ids: tf.gather(inner, ids), autograph=False)(features["ids"])
    rows = [tf.nn.embedding_lookup(table, features["ids"]) for table in (frequent, rare)]
    return tf.reduce_sum((rows[0] + rows[1] + looked_up) * weights, axis=1)


def captured(
    model: Callable[[Features], tf.Tensor] = lookup_model,
    *,
    optimizer: str = "adagrad",
    process: Process = as_they_are,
    features: dict[str, tuple[tuple[int, ...], str]] = FEATURES,
) -> SingleDeviceGraph:
    """The graph that fits `model` to the feature «y»; `process` is what the model does with its raw gradients."""

    def build(placeholders: Features) -> dict[str, Any]:
        loss = tf.reduce_mean(tf.square(model(placeholders) - placeholders["y"]))
        chosen = OPTIMIZERS[optimizer]()
        gradients, variables = zip(*chosen.compute_gradients(loss), strict=True)
        pairs = zip(process(list(gradients)), variables, strict=True)
        train_op = chosen.apply_gradients(pairs, global_step=tf.train.get_or_create_global_step())
        return {"loss": loss, "train_op": train_op, "validation_loss": loss}

    return capture(build, features, seed=1)


def infos(single: SingleDeviceGraph) -> dict[str, VariableInfo]:
    """What analysis says, by name."""
    return {info.name: info for info in classify(single)}


def planned(
    single: SingleDeviceGraph,
    comm: str,
    *,
    workers: int = 2,
    servers: int = 2,
    partitions: int = 1,
    average_sparse: bool = True,
) -> Plan:
    """The plan of a captured graph."""
    return plan_of(
        classify(single),
        comm=comm,
        workers=1 if comm == "local" else workers,
        servers=servers,
        partitions=partitions,
        average_sparse=average_sparse,
        fingerprint=single.fingerprint,
    )


def planned_auto(single: SingleDeviceGraph, *, workers: int = 4, servers: int = 2) -> Plan:
    """The plan of comm=auto for `routes_model`, as if a trial had run: each rank touches all of the few rows, and one
    row per example of the many. The links are slow, so bytes decide and not the number of messages."""
    variables = tuple(classify(single))
    touched = {"frequent": (ROWS, ROWS), "rare": (BATCH, workers * BATCH), "inner": (BATCH, workers * BATCH)}
    rows = tuple(
        RowStatistics(info.name, info.shape[0], float(BATCH), *map(float, touched[info.name]), samples=workers)
        for info in variables
        if info.name in touched
    )
    assert len(rows) == len(touched)
    model = CostModel(
        Cluster(workers, servers),
        DEFAULTS.with_link(gbit_per_sec=0.0001, latency_us=100),
        CommOptions(lookahead=Lookahead.OFF),
        measured=Measured(single.fingerprint, workers, 1, 0.1, BATCH, None, variables, rows, "2026-01-01"),
    )
    plan = plan_of(
        variables,
        comm="auto",
        workers=workers,
        servers=servers,
        fingerprint=single.fingerprint,
        choice=choose_routes(variables, model),
        measured=model.measured,
    )
    return explain(plan, variables, model)


def on_one_device(*graphs: tf.Graph) -> tf.Graph:
    """The graphs of ranks 0, 1, … as one that a plain session runs: without devices, rank R's names behind «rankR/».

    Of one graph the names stay as they are. Variables, queues and accumulators on servers are the same for all ranks
    that have them; a worker's variables are its own.
    """
    together = tf.Graph()
    for rank, graph in enumerate(graphs):
        graph_def = graph.as_graph_def()
        prefix = f"rank{rank}" if len(graphs) > 1 else ""
        for node in graph_def.node:
            if node.op == "VarHandleOp" and not node.device.startswith("/job:ps"):
                node.attr["shared_name"].s = f"{prefix}/{node.name}".encode()
            node.device = ""
        with together.as_default():
            tf.import_graph_def(graph_def, name=prefix)
    return together


def assert_golden(name: str, text: str) -> None:
    """Compares with tests/golden/NAME; UPDATE_GOLDEN=1 writes it instead."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    expected = path.read_text(encoding="utf-8")
    lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), str(path), "now", lineterm="")
    assert text == expected, "\n".join([*lines, "if this is meant: UPDATE_GOLDEN=1"])
