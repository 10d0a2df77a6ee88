"""What the device scopes of a model name: a device of any worker, or a task of the cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator

import tensorflow.compat.v1 as tf

from parallax_runner.graph.single_device_graph import SingleDeviceGraph

PS, WORKER = "ps", "worker"


def server_device(server: int) -> str:
    """The device of a server's variables."""
    return f"/job:{PS}/task:{server}/device:CPU:0"


def scopes_of(graph_def: tf.GraphDef) -> Iterator[tuple[str, tf.DeviceSpec]]:
    """(name, device) of every op, also inside functions, that stands in a device scope."""
    for node in _nodes(graph_def):
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
    for node in _nodes(copy):
        node.device = ""
    return copy


def without_tasks(single: SingleDeviceGraph) -> SingleDeviceGraph:
    """The same graph for a process that is in no cluster: scopes name devices of it, and no longer tasks."""
    meta_graph = tf.MetaGraphDef()
    meta_graph.CopyFrom(single.meta_graph)
    for node in _nodes(meta_graph.graph_def):
        device = tf.DeviceSpec.from_string(node.device)
        node.device = device.replace(job=None, replica=None, task=None).to_string()
    return dataclasses.replace(single, meta_graph=meta_graph)


def leave_devices(graph_def: tf.GraphDef, missing: Collection[str]) -> None:
    """Takes the scopes of these devices away, and keeps the job and task that they name."""
    for node in _nodes(graph_def):
        device = tf.DeviceSpec.from_string(node.device)
        if node.device and device.to_string() in missing:
            node.device = device.replace(device_type=None, device_index=None).to_string()


def _nodes(graph_def: tf.GraphDef) -> Iterable[tf.NodeDef]:
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def
