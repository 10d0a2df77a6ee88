"""Keeps TensorFlow from running collectives while it optimizes a graph (docs/design/0010-constant-folding.md)."""

from __future__ import annotations

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig


def turn_off_constant_folding(config: tf.ConfigProto) -> None:
    """Changes a session's configuration.

    TensorFlow takes a collective for a pure function: where its inputs are constant it would run it while it optimizes
    one rank's graph, and leave the other ranks waiting.
    """
    config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    config.graph_options.rewrite_options.constant_folding = RewriterConfig.OFF
