"""Joins TensorFlow's grpc cluster of workers and servers."""

from __future__ import annotations

import sys

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from parallax_runner.launch.client import ControlClient
from parallax_runner.launch.ports import pick_port

HOST = "127.0.0.1"
# TensorFlow's server listens on all of them, whatever address it is given.
ALL_INTERFACES = "0.0.0.0"
JOBS = {"worker": "worker", "server": "ps"}


def session_config(threads: int, device_filters: list[str] | None = None) -> tf.ConfigProto:
    """`threads` compute threads, within and between ops; constants are not folded.

    TensorFlow takes a collective for a pure function: where its inputs are constant it would run it while it optimizes
    one rank's graph, and leave the other ranks waiting.
    """
    config = tf.ConfigProto(
        intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads, device_filters=device_filters
    )
    config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    config.graph_options.rewrite_options.constant_folding = RewriterConfig.OFF
    return config


def join_cluster(client: ControlClient, *, role: str, index: int, threads: int) -> tf.train.Server:
    """Starts this process's TensorFlow server on a free port, once all processes have published theirs."""
    address = f"{HOST}:{pick_port(ALL_INTERFACES)}"
    addresses = client.exchange_address(address)
    cluster = tf.train.ClusterSpec({JOBS[other]: listed for other, listed in addresses.items()})
    try:
        return tf.train.Server(cluster, job_name=JOBS[role], task_index=index, config=session_config(threads))
    except tf.errors.UnknownError as error:
        if "Could not start gRPC server" not in str(error):
            raise
        client.port_taken(address)
        sys.exit(1)
