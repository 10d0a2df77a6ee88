"""Pass: bypass the optimizers' removal of duplicate ids, since merged gradients have no duplicates."""

from __future__ import annotations

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
        for unique in [op for op in gradient.indices.consumers() if op in rewrite.region and op.type == "Unique"]:
            distinct, numbers = unique.outputs
            for op in numbers.consumers():
                if op in rewrite.region and op.type == "UnsortedSegmentSum" and op.inputs[1] is numbers:
                    edit.reconnect(op.outputs[0], op.inputs[0], where=rewrite.region.__contains__)
            edit.reconnect(distinct, gradient.indices, where=rewrite.region.__contains__)
