"""Which models are exported without their values: the files of the checkpoint become the SavedModel's variables."""

from __future__ import annotations

# The values of smaller models are written without the optimizer's slots, which a checkpoint has too.
LEAST_LINKED_BYTES = 2 << 30


def is_linked(values_bytes: int) -> bool:
    """Returns whether a SavedModel with so many bytes of values has links to the files of its checkpoint."""
    return values_bytes > LEAST_LINKED_BYTES
