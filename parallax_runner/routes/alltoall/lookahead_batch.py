"""Copies the ops that compute ids from a batch. The copies compute the ids of the next step's batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.lookahead_ids import draws, lead_to
from parallax_runner.graph import edit
from parallax_runner.rewrite.distributed_graph import Carried
from parallax_runner.rewrite.rewrite_state import Rewrite


@dataclass
class NextBatch:
    """The copied ops and their inputs.

    `features` maps features to placeholders for the next batch. `drawn` are the random draws of the next step. Each
    draw is made once, and its value is fed to the next step.
    """

    rewrite: Rewrite
    features: dict[str, tf.Tensor] = field(default_factory=dict)
    drawn: list[Carried] = field(default_factory=list)
    _copies: dict[str, tf.Tensor] = field(default_factory=dict)

    def of(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the value of `tensor` in the next step. The tensor must depend only on the batch and on random
        draws."""
        for op in edit.in_order(lead_to(tensor)):
            self._copy(op)
        return self._copies.get(tensor.name, tensor)

    def _copy(self, op: tf.Operation) -> None:
        if any(output.name in self._copies for output in op.outputs):
            return
        feature = next((name for name, fed in self._features() if fed is op.outputs[0]), None) if op.outputs else None
        if feature is not None:
            (old,) = op.outputs
            new = tf.placeholder(old.dtype, old.shape, name=f"{op.name}/next")
            self.features[feature], self._copies[old.name] = new, new
        elif draws(op) or any(each.name in self._copies for each in op.inputs):
            inputs = [self._copies.get(each.name, each) for each in op.inputs]
            copy = edit.clone(op, inputs, name=f"{op.name}/next", control_inputs=[], device=op.device)
            for old, new in zip(op.outputs, copy.outputs, strict=True):
                new.set_shape(old.shape)
                self._copies[old.name] = new
            if draws(op):
                self.drawn += [Carried(old, new) for old, new in zip(op.outputs, copy.outputs, strict=True)]

    def _features(self) -> list[tuple[str, tf.Tensor]]:
        return [(name, self.rewrite.tensor(tensor)) for name, tensor in self.rewrite.single.features.items()]
