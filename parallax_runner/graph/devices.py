"""The device scopes of a model. A scope names a device that every worker has, or a task of the cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator

import tensorflow.compat.v1 as tf

from parallax_runner.graph.all_nodes import all_nodes
from parallax_runner.graph.single_device_graph import SingleDeviceGraph

PS, WORKER = "ps", "worker"


def server_device(server: int) -> str:
    """Returns the device of a server's variables."""
    return f"/job:{PS}/task:{server}/device:CPU:0"


def scopes_of(graph_def: tf.GraphDef) -> Iterator[tuple[str, tf.DeviceSpec]]:
    """Yields (name, device) for every op in a device scope, including ops inside functions."""
    for node in all_nodes(graph_def):
        if node.device:
            yield node.name, tf.DeviceSpec.from_string(node.device)


def named_server(device: str) -> int | None:
    """Returns the index of the server that a device scope names, or None."""
    spec = tf.DeviceSpec.from_string(device)
    return spec.task if spec.job == PS else None


def named_workers(graph_def: tf.GraphDef) -> set[int]:
    """Returns the worker tasks named by device scopes."""
    return {spec.task for _, spec in scopes_of(graph_def) if spec.job == WORKER and spec.task is not None}


def without_devices(graph_def: tf.GraphDef) -> tf.GraphDef:
    """Returns a copy of the graph without device scopes."""
    copy = tf.GraphDef()
    copy.CopyFrom(graph_def)
    for node in all_nodes(copy):
        node.device = ""
    return copy


def without_tasks(single: SingleDeviceGraph) -> SingleDeviceGraph:
    """Returns the same graph for a process outside any cluster. Scopes keep the device, but not the job and task."""
    meta_graph = tf.MetaGraphDef()
    meta_graph.CopyFrom(single.meta_graph)
    for node in all_nodes(meta_graph.graph_def):
        device = tf.DeviceSpec.from_string(node.device)
        node.device = device.replace(job=None, replica=None, task=None).to_string()
    return dataclasses.replace(single, meta_graph=meta_graph)


def leave_devices(graph_def: tf.GraphDef, missing: Collection[str]) -> None:
    """Removes the `missing` devices from scopes, but keeps each scope's job and task."""
    for node in all_nodes(graph_def):
        device = tf.DeviceSpec.from_string(node.device)
        if node.device and device.to_string() in missing:
            node.device = device.replace(device_type=None, device_index=None).to_string()
