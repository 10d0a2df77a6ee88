"""What the device scopes of a model name: a device of any worker, or a task of the cluster."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow.compat.v1 as tf

PS, WORKER = "ps", "worker"


def scopes_of(graph_def: tf.GraphDef) -> Iterator[tuple[str, tf.DeviceSpec]]:
    """(name, device) of every op, also inside functions, that stands in a device scope."""
    nodes = [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]
    for node in nodes:
        if node.device:
            yield node.name, tf.DeviceSpec.from_string(node.device)


def named_server(device: str) -> int | None:
    """The server that a device scope names, if it names one."""
    spec = tf.DeviceSpec.from_string(device)
    return spec.task if spec.job == PS else None


def named_workers(graph_def: tf.GraphDef) -> set[int]:
    """The tasks of workers that device scopes name."""
    return {spec.task for _, spec in scopes_of(graph_def) if spec.job == WORKER and spec.task is not None}


def without_devices(graph_def: tf.GraphDef) -> tf.GraphDef:
    """A copy of which nothing stands in a device scope."""
    copy = tf.GraphDef()
    copy.CopyFrom(graph_def)
    for node in [*copy.node, *(node for function in copy.library.function for node in function.node_def)]:
        node.device = ""
    return copy
