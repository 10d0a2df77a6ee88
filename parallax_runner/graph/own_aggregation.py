"""Refuses optimizers of other distribution libraries, which aggregate gradients themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import tensorflow.compat.v1 as tf

from parallax_runner.errors import CaptureError
from parallax_runner.graph import edit
from parallax_runner.graph.seeds import called_by
from parallax_runner.graph.single_device_graph import Gradient

# The ops with which tf.train.SyncReplicasOptimizer takes the gradients of all workers from a server.
TAKES = frozenset({"AccumulatorTakeGradient", "SparseAccumulatorTakeGradient", "ResourceAccumulatorTakeGradient"})


def refuse_own_aggregation(graph: tf.Graph, recorded: Iterable[Gradient]) -> None:
    """Raises CaptureError if an update reads gradients that the graph itself has aggregated over workers.

    The forward and backward pass may contain collectives, for example in a batch normalization over workers. Only the
    ops between the recorded gradients and the updates are examined.
    """
    names = frozenset(name for one in recorded for name in (one.values, one.indices) if name)
    updates = [op for op in graph.get_operations() if edit.is_write(op)]
    between = sorted(edit.ancestors(updates, stop_at=names), key=lambda op: op.name)
    for op in between:
        library = _library_of(op.type)
        if library is not None:
            raise _refusal(f"«{op.name}» ({op.type})", library)
    for name, op_type in _called(graph, between):
        if (library := _library_of(op_type)) is not None:
            raise _refusal(f"the function «{name}» ({op_type})", library)


def _called(graph: tf.Graph, ops: Iterable[tf.Operation]) -> Iterator[tuple[str, str]]:
    """Yields the type of each op in the functions that the ops call, with the name of its function."""
    nodes = [op.node_def for op in ops]
    if not any(attr.HasField("func") or attr.list.func for node in nodes for attr in node.attr.values()):
        return
    graph_def = graph.as_graph_def()
    called = called_by(nodes, graph_def)
    for function in graph_def.library.function:
        if function.signature.name in called:
            yield from ((function.signature.name, node.op) for node in function.node_def)


def _refusal(what: str, library: str) -> CaptureError:
    return CaptureError(
        f"the update reads {what}, with which {library} aggregates gradients over workers. The runner aggregates them "
        "itself: use the optimizer without this wrapper"
    )


def _library_of(op_type: str) -> str | None:
    if op_type in TAKES:
        return "tf.train.SyncReplicasOptimizer"
    return "Horovod's DistributedOptimizer" if op_type.startswith("Horovod") else None
