"""Computes values of a traced step again, from other values of some of its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from parallax_runner.graph.traced.imported import without_colocation


@dataclass(frozen=True)
class Replayed:
    """The part of a step between `sums` and values. `definition` contains its ops. `fed` maps the name of each tensor
    that reads a sum to the position of the sum, and `wanted` maps the key of each value to the name of its tensor."""

    definition: Any
    sums: tuple[Any, ...]
    fed: Mapping[str, int]
    wanted: Mapping[str, str]

    @classmethod
    def of(cls, graph: Any, wanted: Mapping[str, Any], sums: Mapping[str, Any]) -> Replayed:
        """Returns the ops of the traced `graph` behind the tensors `wanted`. `sums` maps names of tensors to the sums
        that they read. Values must depend on these tensors and on constants alone."""
        ops, fed = _between(wanted.values(), sums)
        needed = list({sums[name].name: sums[name] for name in fed}.values())
        positions = {tensor.name: number for number, tensor in enumerate(needed)}
        definition = without_colocation(graph.as_graph_def())
        kept = [node for node in definition.node if node.name in ops]
        del definition.node[:]
        definition.node.extend(kept)
        for node in definition.node:
            data = [name for name in node.input if not name.startswith("^")]
            del node.input[:]
            node.input.extend(data)
        by_key = {key: tensor.name for key, tensor in wanted.items()}
        return cls(definition, tuple(needed), {name: positions[sums[name].name] for name in fed}, by_key)

    def run(self, totals: Sequence[Any]) -> dict[str, float]:
        """Returns the values by key for these totals of `sums`."""
        with context.eager_mode(), tf.device("CPU:0"):
            given = [
                tf.constant(np.asarray(total).astype(spec.dtype.as_numpy_dtype).reshape(spec.shape))
                for total, spec in zip(totals, self._specs, strict=True)
            ]
            found = self._function(*given)
        return {key: float(np.asarray(value.numpy()).item()) for key, value in zip(self.wanted, found, strict=True)}

    @cached_property
    def _specs(self) -> list[Any]:
        return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in self.sums]

    @cached_property
    def _function(self) -> Any:
        def replay(*sums: Any) -> Any:
            fed = {name: sums[number] for name, number in self.fed.items()}
            # A value can itself be the read of a sum.
            computed = [name for name in self.wanted.values() if name not in fed]
            found = tf.graph_util.import_graph_def(self.definition, fed, return_elements=computed, name="") or ()
            by_name = fed | dict(zip(computed, found, strict=True))
            return [tf.identity(by_name[name]) for name in self.wanted.values()]

        return tf.compat.v1.wrap_function(replay, self._specs)


def _between(ends: Any, sums: Mapping[str, Any]) -> tuple[set[str], list[str]]:
    """Returns the names of the ops behind the tensors `ends`, and the names of the tensors among `sums` that these ops
    read, in a fixed order."""
    ops: set[str] = set()
    fed: dict[str, None] = {}
    waiting = list(ends)
    while waiting:
        tensor = waiting.pop(0)
        if tensor.name in sums:
            fed[tensor.name] = None
        elif tensor.op.name not in ops:
            ops.add(tensor.op.name)
            waiting += tensor.op.inputs
    return ops, list(fed)
