"""Pass: bypass the optimizers' removal of duplicate ids, since merged gradients have no duplicates."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite


@rewrite_pass(reads=["gradients"])
def skip_deduplication(rewrite: Rewrite) -> None:
    """Bypasses the Unique and UnsortedSegmentSum ops (`Optimizer._deduplicate_indexed_slices`) that process merged ids.

    Merged ids are distinct and ascending, so Unique returns them unchanged and numbers them 0, 1, 2, … The segment sum
    over these numbers is the identity.
    """
    for gradient in rewrite.gradients:
        if gradient.indices is None:
            continue
        bypassed: set[tf.Operation] = set()
        # Clipping and the optimizer each remove duplicates. Once the first is bypassed, the second one reads the ids.
        while found := [op for op in _removals(rewrite, gradient.indices) if op not in bypassed]:
            for unique in found:
                _bypass(rewrite, unique, gradient.indices)
            bypassed.update(found)


def _removals(rewrite: Rewrite, ids: tf.Tensor) -> list[tf.Operation]:
    return [op for op in ids.consumers() if op in rewrite.region and op.type == "Unique"]


def _bypass(rewrite: Rewrite, unique: tf.Operation, ids: tf.Tensor) -> None:
    distinct, numbers = unique.outputs
    for op in numbers.consumers():
        if op in rewrite.region and op.type == "UnsortedSegmentSum" and op.inputs[1] is numbers:
            edit.reconnect(op.outputs[0], op.inputs[0], where=rewrite.region.__contains__)
    edit.reconnect(distinct, ids, where=rewrite.region.__contains__)
