"""Checks that every device that a model names will be there."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from parallax_runner.errors import PlanError
from parallax_runner.graph.devices import PS, scopes_of
from parallax_runner.graph.single_device_graph import SingleDeviceGraph


def check_devices(single: SingleDeviceGraph, *, comm: str, tasks: Mapping[str, int], worker: Mapping[str, int]) -> None:
    """Raises PlanError for the first op in the scope of a device that no process will have.

    `tasks` is how many there are of each job, empty where workers form no cluster; `worker` how many devices of each
    kind («CPU», «GPU») a worker has. A server has one CPU.
    """
    for name, device in scopes_of(single.meta_graph.graph_def):
        reason = _missing_task(device, comm, tasks) or _missing_device(
            device, {"CPU": 1} if device.job == PS else worker
        )
        if reason:
            raise PlanError(f"op «{name}» is placed on {device.to_string()}, which does not exist: {reason}")


def _missing_task(device: tf.DeviceSpec, comm: str, tasks: Mapping[str, int]) -> str | None:
    if device.job is None:
        return None
    if not tasks:
        return f"under comm={comm} workers form no cluster with tasks; comm=ps and servers make one"
    number = tasks.get(device.job, 0)
    if number and (device.task or 0) < number and not device.replica:
        return None
    there = " and ".join(f"/job:{job}/task:0 to {count - 1}" for job, count in tasks.items())
    return f"there are {there} (cluster.workers, cluster.servers)"


def _missing_device(device: tf.DeviceSpec, there: Mapping[str, int]) -> str | None:
    if device.device_type is None or (device.device_index or 0) < there.get(device.device_type.upper(), 0):
        return None
    listed = " and ".join(f"{kind}:0 to {count - 1}" for kind, count in there.items() if count)
    if device.job == PS:
        return f"a server has {listed}"
    return f"each worker has {listed} (cluster.cpu_devices; GPUs by cluster.resource_info)"
