"""`action=verify`: compares a distributed run with the reference, on the user's own model and data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.graph.seeds import derive_seeds
from parallax_runner.graph.shard_ids import set_shards
from parallax_runner.graph.single_device_graph import SingleDeviceGraph, Variable
from parallax_runner.plan.comm_options import Compression
from parallax_runner.plan.plan import Plan
from parallax_runner.verify.compare import Comparison, compare, largest
from parallax_runner.verify.reference import Reference

# Tolerances are relative to a variable's largest change. Each float32 operation has a rounding error of up to 6e-8. The
# two sides add gradients in different orders, and recurrent models amplify the differences. A gradient that is wrongly
# dropped, clipped or divided causes a difference of 0.1 or more.
TOLERANCE_FLOAT64 = 1e-8
TOLERANCE_FLOAT32 = 1e-3
# With bfloat16, each gradient and each looked-up row has a rounding error of up to 2e-3, which a model may amplify.
TOLERANCE_16_BITS = 5e-2


class Proof:
    """Repeats a run on one device in parts, and compares the variables after each part.

    Each part begins with the run's own values, because a model can amplify rounding errors exponentially. After a few
    hundred steps, two correct float32 runs can differ as much as a correct run and a wrong one.
    """

    def __init__(
        self,
        single: SingleDeviceGraph,
        plan: Plan,
        *,
        seed: int,
        first_step: int,
        initial: Mapping[str, np.ndarray],
        gpu_options: tf.GPUOptions | None = None,
    ) -> None:
        """`initial` contains the values of all saved variables before step `first_step` + 1, each in its full shape.
        `gpu_options` limits the GPUs that the proof uses."""
        initializers = [variable.initializer for variable in single.variables]

        def seeds(graph_def: tf.GraphDef, rank: int) -> tf.GraphDef:
            seeded = derive_seeds(graph_def, seed=seed, rank=rank, first_step=first_step, initializers=initializers)
            return set_shards(seeded, num_shards=plan.replicas, shard_id=rank)

        self._tolerance = tolerance_for(single, plan)
        self._reference = Reference(
            single,
            ranks=plan.replicas,
            average_sparse=plan.options.average_sparse,
            seeds=seeds,
            gpu_options=gpu_options,
        )
        self._reference.initialize()
        self._reference.load(initial)
        self._initial = initial
        self.comparison: Comparison | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reference.close()

    def add(self, batches: Iterable[Sequence[Mapping[str, np.ndarray]]], final: Mapping[str, np.ndarray]) -> bool:
        """Adds a part. Returns whether the variables are equal after all parts so far.

        `batches` contains, for each step of the part, a batch for each rank. `final` contains the run's values after
        the part. `comparison` is then the comparison of the first part that differs, or the largest differences of all
        parts. Nothing is compared after a part that differs.
        """
        if self.comparison is not None and not self.comparison.ok:
            return False
        for ranks in batches:
            self._reference.step(ranks)
        found = compare(final, self._reference.values(), tolerance=self._tolerance, initial=self._initial)
        self.comparison = found if self.comparison is None or not found.ok else largest(self.comparison, found)
        return found.ok

    def begin_part(self, values: Mapping[str, np.ndarray]) -> None:
        """Begins the next part with these values of the run."""
        self._reference.follow(values)
        self._initial = values


def tolerance_for(single: SingleDeviceGraph, plan: Plan) -> float:
    """Returns the tolerance for the narrowest floating-point type of the variables and of the values that are sent."""
    if plan.options.compression is not Compression.OFF:
        return TOLERANCE_16_BITS
    return tolerance_of(single.variables)


def tolerance_of(variables: Iterable[Variable]) -> float:
    """Returns the tolerance for the narrowest floating-point type of the variables."""
    floating = [tf.as_dtype(variable.dtype) for variable in variables if tf.as_dtype(variable.dtype).is_floating]
    return TOLERANCE_FLOAT64 if all(dtype.size == 8 for dtype in floating) else TOLERANCE_FLOAT32
