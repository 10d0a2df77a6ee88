"""One rank of `benchmarks.growing_ranks`: `python -m benchmarks.growing_rank RUN_DIR`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from benchmarks.growing import MULTIPLIER
from parallax_runner.analysis.classify import classify
from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.collectives import ops as collectives
from parallax_runner.collectives.chosen import BACKENDS, DEFAULT, choose
from parallax_runner.graph.capture import capture
from parallax_runner.launch.child import run_child
from parallax_runner.launch.control.client import ControlClient, rank_from_environ
from parallax_runner.layers import growing_lookup
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.planning.plan_request import PlanRequest
from parallax_runner.planning.planner import make_plan
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.train.session_config import session_config
from parallax_runner.train.sessions import initialize

STATIC, GROWING, ADMITTING, EVICTING, BOTH = "static", "growing", "admits", "evicts", "admits and evicts"
WARM_UP_STEPS = 5
Lookup = Callable[[tf.Tensor, tf.train.Optimizer], tf.Tensor]


def lookups(order: Mapping[str, Any]) -> dict[str, Lookup]:
    """Returns how each table looks up the rows of keys."""
    fixed = {"name": "table", "dim": order["columns"], "capacity": order["capacity"], "seed": 1, "overflow": "shared"}
    admit = {"admit": {"min_count": order["min_count"]}}
    evict = {"evict": {"unused_steps": order["unused_steps"], "every_steps": order["every_steps"]}}

    def growing(**rules: Any) -> Lookup:
        return lambda keys, optimizer: growing_lookup(keys, training=True, optimizer=optimizer, **fixed, **rules)

    def static(keys: tf.Tensor, _: tf.train.Optimizer) -> tf.Tensor:
        shape = [order["capacity"], order["columns"]]
        table = tf.get_variable("table", shape, initializer=tf.random_uniform_initializer(seed=1), use_resource=True)
        return tf.nn.embedding_lookup(table, keys % order["capacity"])

    return {
        STATIC: static,
        GROWING: growing(),
        ADMITTING: growing(**admit),
        EVICTING: growing(**evict),
        BOTH: growing(**admit, **evict),
    }


class Training:
    """One of the tables on this rank."""

    def __init__(self, rank: int, order: Mapping[str, Any], look_up: Lookup) -> None:
        def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
            optimizer = tf.train.AdagradOptimizer(0.05)
            rows = look_up(features["keys"], optimizer)
            loss = tf.reduce_mean(tf.square(tf.reduce_sum(rows, axis=1) - features["labels"]))
            train_op = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
            return {"loss": loss, "train_op": train_op}

        batch = (order["batch"],)
        single = capture(build, {"keys": (batch, "int64"), "labels": (batch, "float32")}, seed=1)
        asked = PlanRequest(
            variables=tuple(classify(single)),
            options=CommOptions(),
            comm="sharded",
            workers=order["ranks"],
            servers=0,
            fingerprint=single.fingerprint,
        )
        self._graph = rewrite_for_rank(single, make_plan(asked), rank=rank, seed=1)
        ops = CheckpointOps(self._graph)
        self._keys = [one.keys for one in self._graph.vocabularies.values()]
        self._graph.graph.finalize()
        self._session = tf.Session(graph=self._graph.graph, config=session_config(1))
        initialize(self._session, self._graph, ops, None)

    def step(self, keys: np.ndarray) -> dict[str, float]:
        """Runs a step and returns its time, and the CPU time of all threads."""
        feature = self._graph.features[0]
        fed = {feature["keys"]: keys, feature["labels"]: (keys % 2).astype("float32")}
        began, cpu_began = time.perf_counter(), time.process_time()
        self._session.run(self._graph.train_op, fed)
        return {"secs": time.perf_counter() - began, "cpu_secs": time.process_time() - cpu_began}

    @property
    def keys(self) -> int:
        """The number of keys that have a row in this rank's buckets."""
        return int(sum(self._session.run(self._keys)))


def work(run_dir: Path, number: int, client: ControlClient) -> None:
    """Measures what `order.json` says. Rank 0 writes its steps to `rank_0.json`."""
    order = json.loads((run_dir / "order.json").read_text())
    choose(BACKENDS[DEFAULT])
    collectives.join(may_fuse=False)
    tables = {name: Training(number, order, look_up) for name, look_up in lookups(order).items()}
    draw = np.random.default_rng([1, number])
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in tables}
    for step in range(1, WARM_UP_STEPS + order["steps"] + 1):
        keys = draw.zipf(order["exponent"], order["batch"]) * MULTIPLIER
        # In turn with the others, so that other work on the machine slows them alike.
        names = list(tables)[:: 1 if step % 2 else -1]
        for name in names:
            evicts = name in (EVICTING, BOTH) and step % order["every_steps"] == 0
            told = tables[name].step(keys) | {"evicts": evicts}
            if step > WARM_UP_STEPS:
                found[name].append(told)
    if number == 0:
        for name, steps in found.items():
            steps[-1]["keys"] = tables[name].keys
        (run_dir / "rank_0.json").write_text(json.dumps(found))
    client.done()


if __name__ == "__main__":
    run_child("worker", rank_from_environ(), Path(sys.argv[1]), work)
