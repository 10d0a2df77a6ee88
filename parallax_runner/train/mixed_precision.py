"""Mixed precision by TensorFlow's own graph rewrite: oneDNN computes matrix products and convolutions of float32 in
bfloat16. Variables, gradients and what ranks exchange stay float32 (docs/design/0097)."""

from __future__ import annotations

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from parallax_runner.config.schema import TrainConfig
from parallax_runner.errors import LaunchError, Setting

KEY = "train.mixed_precision"
SIZE = 64  # rows and columns of the matrices of a trial


def with_precision(config: ConfigProto, train: TrainConfig, *, uses_gpus: bool) -> ConfigProto:
    """Returns the session's configuration with the rewrite that `train` asks for.

    Raises LaunchError if the rewrite would change nothing on this machine.
    """
    if train.mixed_precision == "off":
        return config
    if uses_gpus:
        raise _refusal(train, "it changes ops of the CPU only, and this worker uses a GPU", "Set cluster.resource_info")
    config.graph_options.rewrite_options.auto_mixed_precision_onednn_bfloat16 = RewriterConfig.ON
    if not _computes_in_bfloat16(config):
        reason = "TensorFlow computes matrix products on this CPU in float32 nevertheless; oneDNN needs AVX-512"
        raise _refusal(train, reason, "Set train.mixed_precision=off, or use other hosts")
    return config


def _refusal(train: TrainConfig, reason: str, remedy: str) -> LaunchError:
    return LaunchError(f"{reason}.").about(Setting.of(KEY, train.mixed_precision), remedy=remedy)


def _computes_in_bfloat16(config: ConfigProto) -> bool:
    """Runs a small product, and returns whether TensorFlow has run it in bfloat16."""
    trial = ConfigProto(device_count=config.device_count, graph_options=config.graph_options)
    metadata = tf.RunMetadata()
    with tf.Graph().as_default() as graph, tf.Session(graph=graph, config=trial) as session:
        rows = tf.placeholder(tf.float32, [SIZE, SIZE])
        product = tf.nn.relu(tf.matmul(tf.nn.relu(tf.matmul(rows, rows)), rows))
        options = tf.RunOptions(output_partition_graphs=True)
        session.run(product, {rows: [[1.0] * SIZE] * SIZE}, options=options, run_metadata=metadata)
    nodes = [node for of_device in metadata.partition_graphs for node in of_device.node]
    return any(node.attr["T"].type == tf.bfloat16.as_datatype_enum for node in nodes if "MatMul" in node.op)
