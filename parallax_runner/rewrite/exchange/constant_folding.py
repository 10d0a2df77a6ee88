"""Keeps TensorFlow from running collectives while it optimizes a graph (docs/design/0010-constant-folding.md)."""

from __future__ import annotations

from tensorflow.core.protobuf.config_pb2 import ConfigProto, OptimizerOptions
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig


def turn_off_constant_folding(config: ConfigProto) -> None:
    """Turns constant folding off in a session's configuration.

    TensorFlow treats a collective as a pure function. If a collective's inputs were constant, TensorFlow would run the
    collective while optimizing one rank's graph, and that rank would wait for the other ranks.
    """
    config.graph_options.optimizer_options.opt_level = OptimizerOptions.L0
    config.graph_options.rewrite_options.constant_folding = RewriterConfig.OFF
