"""`get_partitioner`: marks the variables of a scope for partitioning. The rewrite, not TensorFlow, partitions these
variables."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.graph.script_graph import PARTITIONERS


def get_partitioner(min_partitions: int = 1) -> Callable[..., list[int]]:
    """Returns a partitioner for `tf.variable_scope`. If a variable in the scope has sparse gradients, the variable is
    sharded across the servers.

    A variable has `min_partitions` shards. With `search_partitions`, a search chooses the number of shards with which
    training is fastest, at least `min_partitions`. The script sees each variable as a whole: checkpoints and fetches
    use the variable's own name.
    """
    if isinstance(min_partitions, bool) or not isinstance(min_partitions, int) or min_partitions < 1:
        raise ValueError(f"min_partitions={min_partitions!r}: expected an integer, at least 1")

    def partitioner(shape: Any, **_: Any) -> list[int]:
        sizes = tf.TensorShape(shape).as_list()
        scope = tf.get_variable_scope().name
        mark = {"scope": scope, "shape": sizes, "min_partitions": min_partitions}
        tf.add_to_collection(PARTITIONERS, json.dumps(mark))
        return [1] * len(sizes)

    return partitioner
