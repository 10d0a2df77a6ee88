"""Joins TensorFlow's grpc cluster of workers and servers."""

from __future__ import annotations

import sys

import tensorflow.compat.v1 as tf

from parallax_runner.graph.devices import named_workers
from parallax_runner.launch.bind_address import bind_towards
from parallax_runner.launch.control.client import ControlClient
from parallax_runner.launch.ports import pick_port
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.rewrite.exchange.constant_folding import turn_off_constant_folding
from parallax_runner.train.gpu_limits import GpuLimits, hide_gpus

JOBS = {"worker": "worker", "server": "ps"}


def session_config(
    threads: int,
    device_filters: list[str] | None = None,
    gpus: GpuLimits | None = None,
    cpu_devices: int = 1,
    *,
    soft_placement: bool = False,
) -> tf.ConfigProto:
    """Returns a session configuration with `threads` threads within ops and `threads` between ops.

    The session does not fold constants. If `gpus` is None, the session uses no GPU. With `soft_placement`, an op
    without a kernel for its device runs on another device.
    """
    config = tf.ConfigProto(
        intra_op_parallelism_threads=threads,
        inter_op_parallelism_threads=threads,
        device_filters=device_filters,
        device_count={"CPU": cpu_devices},
        allow_soft_placement=soft_placement,
    )
    turn_off_constant_folding(config)
    if gpus is None:
        hide_gpus(config)
    else:
        gpus.apply(config)
    return config


def device_filters(distributed: DistributedGraph) -> list[str]:
    """Returns filters that admit only the servers, this worker, and the workers that the model's device scopes name.

    A step then does not require any other worker to be alive.
    """
    workers = {distributed.rank, *named_workers(distributed.graph.as_graph_def())}
    return ["/job:ps", *(f"/job:worker/task:{worker}" for worker in sorted(workers))]


def merged(config: tf.ConfigProto, own: tf.ConfigProto | None) -> tf.ConfigProto:
    """Merges a script's own configuration into `config`. Constant folding stays off, as collectives require."""
    if own is not None:
        config.MergeFrom(own)
        turn_off_constant_folding(config)
    return config


def join_cluster(
    client: ControlClient,
    *,
    role: str,
    index: int,
    threads: int,
    protocol: str = "grpc",
    gpus: GpuLimits | None = None,
    cpu_devices: int = 1,
    sess_config: tf.ConfigProto | None = None,
) -> tf.train.Server:
    """Starts this process's TensorFlow server on a free port, once all processes have published their addresses.

    The server listens only on the published address, because anyone who can connect to it can read and write this
    user's files. `protocol` is the server's protocol. `gpus` limits a worker's use of this machine's GPUs. If `gpus` is
    None, the process uses no GPU.
    """
    # By default, the server listens on all interfaces, regardless of its address.
    bind_towards(client.own_address)
    address = f"{client.own_address}:{pick_port(client.own_address)}"
    addresses = client.exchange_address(address)
    cluster = tf.train.ClusterSpec({JOBS[other]: listed for other, listed in addresses.items()})
    try:
        config = merged(session_config(threads, gpus=gpus, cpu_devices=cpu_devices), sess_config)
        return tf.train.Server(cluster, job_name=JOBS[role], task_index=index, protocol=protocol, config=config)
    except tf.errors.UnknownError as error:
        if "Could not start gRPC server" not in str(error):
            raise
        client.port_taken(address)
        sys.exit(1)
