"""A part of the training that goes by one plan; between two of them variables are cut anew, and steps count on."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.ops import CheckpointOps
from parallax_runner.rewrite.distributed_graph import DistributedGraph


@dataclass(frozen=True)
class Graph:
    """What a rank trains with, from one change of the plan to the next."""

    session: tf.Session
    distributed: DistributedGraph
    checkpoints: CheckpointOps


@dataclass(frozen=True)
class Segment:
    """Ends after step `until`, None: with the training. `graph` None: it goes by the plan of the one before."""

    until: int | None
    graph: Graph | None = None
