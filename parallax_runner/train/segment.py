"""A part of the training that uses one plan.

Between two segments, variables are repartitioned, and the step count continues.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.rewrite.distributed_graph import DistributedGraph


@dataclass(frozen=True)
class Graph:
    """The session, graph and checkpoint ops of a rank between two changes of the plan."""

    session: tf.Session
    distributed: DistributedGraph
    checkpoints: CheckpointOps


@dataclass(frozen=True)
class Segment:
    """A segment that ends after step `until`, or at the end of the training if `until` is None.

    If `graph` is None, the segment continues with the previous segment's plan. If `is_last`, training ends with the
    segment.
    """

    until: int | None
    graph: Graph | None = None
    is_last: bool = False
