"""Checks that the run will have every device that a model names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from parallax_runner.errors import PlanError
from parallax_runner.graph.devices import PS, scopes_of
from parallax_runner.graph.single_device_graph import SingleDeviceGraph

ELSEWHERE = "cluster.soft_placement=true runs the op on another device"
SERVER: Mapping[str, int] = {"CPU": 1}


def check_devices(
    single: SingleDeviceGraph,
    *,
    comm: str,
    tasks: Mapping[str, int],
    worker: Mapping[str, int],
    replicas: int = 1,
    soft: bool = False,
) -> tuple[tuple[int, str, str], ...]:
    """Raises PlanError for the first op placed on a device that the run will not have.

    `tasks` contains the number of tasks for each job, and is empty if the workers do not form a cluster. `worker`
    contains the number of devices of each type («CPU», «GPU») in a worker. `replicas` is the number of replicas in a
    worker, each on its own device. A server has one CPU. With `soft`, ops are moved away from missing devices of
    existing tasks, and these moves are returned as (number of ops, from, to).
    """
    moved: Counter[tuple[str, str]] = Counter()
    for name, device in scopes_of(single.meta_graph.graph_def):
        there = SERVER if device.job == PS else worker
        missing_task, missing = _missing_task(device, comm, tasks), _missing_device(device, there)
        if missing_task or (missing and not soft):
            reason = missing_task or missing
            raise PlanError(f"op «{name}» is placed on {device.to_string()}, which does not exist: {reason}")
        if missing:
            moved[device.to_string(), _device_in_place(device, there, replicas)] += 1
    return tuple((ops, *where) for where, ops in sorted(moved.items()))


def _device_in_place(device: tf.DeviceSpec, there: Mapping[str, int], replicas: int) -> str:
    """Returns the device that TensorFlow chooses for an op that names this job and task, but no device."""
    kind = "GPU" if there.get("GPU") else "CPU"
    own = device.replace(device_type=kind, device_index=0).to_string()
    return own if device.job == PS or replicas == 1 else f"{own} to {replicas - 1}, one for each replica"


def _missing_task(device: tf.DeviceSpec, comm: str, tasks: Mapping[str, int]) -> str | None:
    if device.job is None:
        return None
    if not tasks:
        return f"under comm={comm} the workers are not tasks of a TensorFlow cluster; use comm=ps with servers"
    number = tasks.get(device.job, 0)
    if number and (device.task or 0) < number and not device.replica:
        return None
    there = " and ".join(f"/job:{job}/task:{_numbers(count)}" for job, count in tasks.items())
    return f"the cluster has {there} (cluster.workers, cluster.servers)"


def _missing_device(device: tf.DeviceSpec, there: Mapping[str, int]) -> str | None:
    if device.device_type is None or (device.device_index or 0) < there.get(device.device_type.upper(), 0):
        return None
    listed = " and ".join(f"{kind}:{_numbers(count)}" for kind, count in there.items() if count)
    if device.job == PS:
        return f"a server has {listed} ({ELSEWHERE})"
    return f"each worker has {listed} (cluster.cpu_devices; cluster.resource_info for GPUs; {ELSEWHERE})"


def _numbers(count: int) -> str:
    return "0" if count == 1 else f"0 to {count - 1}"
