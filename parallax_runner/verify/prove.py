"""`action=verify`: compares a distributed run of a few steps with the reference, on the user's own model and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.graph.seeds import derive_seeds
from parallax_runner.graph.shard_ids import set_shards
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.comm_options import Compression
from parallax_runner.plan.plan import Plan
from parallax_runner.verify.compare import Comparison, compare
from parallax_runner.verify.reference import Reference

# Tolerances are relative to a variable's largest change. Each float32 operation has a rounding error of up to 6e-8. The
# two sides add gradients in different orders, and recurrent models amplify the differences. A gradient that is wrongly
# dropped, clipped or divided causes a difference of 0.1 or more.
TOLERANCE_FLOAT64 = 1e-8
TOLERANCE_FLOAT32 = 1e-3
# With bfloat16, each gradient and each looked-up row has a rounding error of up to 2e-3, which a model may amplify.
TOLERANCE_16_BITS = 5e-2


def prove(
    single: SingleDeviceGraph,
    plan: Plan,
    *,
    seed: int,
    first_step: int,
    batches: Sequence[Sequence[Mapping[str, np.ndarray]]],
    initial: Mapping[str, np.ndarray],
    final: Mapping[str, np.ndarray],
) -> Comparison:
    """Compares a run from `initial` to `final` with the result that a single device would have computed.

    `batches` contains, for each step, a batch for each rank. `initial` and `final` contain all saved variables in full
    shapes.
    """
    initializers = [variable.initializer for variable in single.variables]

    def seeds(graph_def: tf.GraphDef, rank: int) -> tf.GraphDef:
        seeded = derive_seeds(graph_def, seed=seed, rank=rank, first_step=first_step, initializers=initializers)
        return set_shards(seeded, num_shards=plan.replicas, shard_id=rank)

    reference = Reference(single, ranks=plan.replicas, average_sparse=plan.options.average_sparse, seeds=seeds)
    try:
        reference.initialize()
        reference.load(initial)
        for ranks in batches:
            reference.step(ranks)
        return compare(final, reference.values(), tolerance=tolerance_for(single, plan), initial=initial)
    finally:
        reference.close()


def tolerance_for(single: SingleDeviceGraph, plan: Plan) -> float:
    """Returns the tolerance for the narrowest floating-point type of the variables and of the values that are sent."""
    if plan.options.compression is not Compression.OFF:
        return TOLERANCE_16_BITS
    floating = [tf.as_dtype(variable.dtype) for variable in single.variables if tf.as_dtype(variable.dtype).is_floating]
    return TOLERANCE_FLOAT64 if all(dtype.size == 8 for dtype in floating) else TOLERANCE_FLOAT32
