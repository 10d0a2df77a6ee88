"""Joins TensorFlow's gRPC cluster of workers and servers.

A server imports this module, so the module imports only part of TensorFlow (`process/tensorflow_import.py`).
"""

from __future__ import annotations

import sys

from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.python.framework.errors_impl import UnknownError
from tensorflow.python.training import server_lib

from parallax_runner.launch.bind_address import bind_towards
from parallax_runner.launch.control.client import ControlClient
from parallax_runner.launch.distinct_seeds import seed_apart
from parallax_runner.launch.ports import pick_port
from parallax_runner.train.gpu_limits import GpuLimits
from parallax_runner.train.session_config import merged, session_config

JOBS = {"worker": "worker", "server": "ps"}


def join_cluster(
    client: ControlClient,
    *,
    role: str,
    index: int,
    threads: int,
    protocol: str = "grpc",
    gpus: GpuLimits | None = None,
    cpu_devices: int = 1,
    sess_config: ConfigProto | None = None,
) -> server_lib.Server:
    """Starts this process's TensorFlow server on a free port, once all processes have published their addresses.

    The server listens only on the published address, because anyone who can connect to it can read and write this
    user's files. `protocol` is the server's protocol. `gpus` limits a worker's use of this machine's GPUs. If `gpus` is
    None, the process uses no GPU.
    """
    # By default, the server listens on all interfaces, regardless of its address.
    bind_towards(client.own_address)
    address = f"{client.own_address}:{pick_port(client.own_address)}"
    addresses = client.exchange_address(address)
    seed_apart(role, index, addresses)
    cluster = server_lib.ClusterSpec({JOBS[other]: listed for other, listed in addresses.items()})
    try:
        config = merged(session_config(threads, gpus=gpus, cpu_devices=cpu_devices), sess_config)
        return server_lib.Server(cluster, job_name=JOBS[role], task_index=index, protocol=protocol, config=config)
    except UnknownError as error:
        if "Could not start gRPC server" not in str(error):
            raise
        client.port_taken(address)
        sys.exit(1)
