"""Finds the rows that the ranks of a cluster would touch, by running the graphs of all ranks one after the other in
this process."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.classify import draws_or_consumes
from parallax_runner.graph import edit
from parallax_runner.graph.boundary import find_boundary
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.plan import Plan
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.train.feed import Feed

OpenSession = Callable[[DistributedGraph], tf.Session]


def ids_by_variable(
    single: SingleDeviceGraph,
    plan: Plan,
    feeds: Sequence[Feed],
    *,
    steps: int,
    seed: int,
    open_session: OpenSession,
) -> dict[str, list[list[np.ndarray]]]:
    """Returns ids[step][rank] for each sparse variable, with duplicates. Runs no backward pass.

    `plan` is a plan for one process, and `feeds` contains the feed of each rank. Each rank uses the same seeds as in
    training. If the ids depend only on the fed data, one session is used for all ranks. `open_session` must also
    initialize the variables.
    """
    found: dict[str, list[list[np.ndarray]]] = defaultdict(lambda: [[] for _ in range(steps)])
    alone = dataclasses.replace(plan, workers=len(feeds))
    session: tf.Session | None = None
    for rank, feed in enumerate(feeds):
        if session is None:
            distributed = rewrite_for_rank(single, alone, rank=rank, seed=seed)
            fetches = _ids(single, distributed.graph)
            if not fetches:
                return {}
            session = open_session(distributed)
        for step in range(steps):
            (batch,) = feed.train_batches(step * feed.global_batch)
            for name, ids in _run(session, fetches, distributed, batch).items():
                found[name][step].append(ids)
        if _differs_by_rank(fetches):
            session.close()
            session = None
    if session is not None:
        session.close()
    return dict(found)


def _run(
    session: tf.Session,
    fetches: Mapping[str, list[tf.Tensor]],
    distributed: DistributedGraph,
    batch: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    (features,) = distributed.features
    fetched = session.run(dict(fetches), {features[name]: array for name, array in batch.items()})
    return {name: np.concatenate([np.ravel(ids) for ids in parts]) for name, parts in fetched.items()}


def _ids(single: SingleDeviceGraph, graph: tf.Graph) -> dict[str, list[tf.Tensor]]:
    """Returns the ids of each sparse variable's raw gradients, before ranks merge them."""
    original = tf.Graph()
    with original.as_default():
        tf.import_graph_def(single.meta_graph.graph_def, name="")
    tensors: dict[str, list[tf.Tensor]] = defaultdict(list)
    dense = set()
    for gradient in find_boundary(original, single.train_op, single.gradients).gradients:
        if gradient.indices is None:
            dense.add(gradient.variable)
        else:
            tensors[gradient.variable].append(graph.get_tensor_by_name(gradient.indices))
    return {name: parts for name, parts in tensors.items() if name not in dense}


def _differs_by_rank(fetches: Mapping[str, Iterable[tf.Tensor]]) -> bool:
    ops = edit.ancestors([tensor.op for tensors in fetches.values() for tensor in tensors])
    return any(op.type == "VarHandleOp" or (op.type != "Placeholder" and draws_or_consumes(op)) for op in ops)
