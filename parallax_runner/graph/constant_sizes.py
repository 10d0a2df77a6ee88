"""Refuses a graph whose constants are too large for a file that TensorFlow can read."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from parallax_runner.errors import CaptureError

# TensorFlow cannot serialize a graph of 2 GB or more. Each process also makes several copies of the graph.
MOST_BYTES = 1_500_000_000
# How many constants a message names.
SHOWN = 3

# The name of a constant and its size in bytes.
Size = tuple[str, int]


def check_constants(sizes: Iterable[Size]) -> None:
    """Raises CaptureError if the constants are larger than `MOST_BYTES` in total. Names the largest ones."""
    found = sorted(sizes, key=lambda one: -one[1])
    total_bytes = sum(size_bytes for _, size_bytes in found)
    if total_bytes <= MOST_BYTES:
        return
    largest = ", ".join(f"{name} ({size_bytes / 1e9:.2g} GB)" for name, size_bytes in found[:SHOWN])
    raise CaptureError(
        f"the constants of the model's graph have {total_bytes / 1e9:.2g} GB, but a graph may have at most "
        f"{MOST_BYTES / 1e9:.2g} GB; the largest: {largest}. Put large arrays into variables (trainable=False), or "
        "read them as features of the data"
    )


def constants_of(graph: tf.Graph) -> list[Size]:
    """Returns the sizes of the constants of a graph in a file. A constant of equal values, such as the initial value of
    a slot, has only one value there."""
    constants = [op.outputs[0] for op in graph.get_operations() if op.type == "Const"]
    sizes = [(f"«{tensor.op.name}»", size_of(tensor)) for tensor in constants]
    if sum(size_bytes for _, size_bytes in sizes) <= MOST_BYTES:
        return sizes  # the shapes suffice; reading a value copies it
    return [(name, _size_in_file(tensor)) for (name, _), tensor in zip(sizes, constants, strict=True)]


def _size_in_file(tensor: tf.Tensor) -> int:
    return int(tensor.op.node_def.attr["value"].ByteSize())


def size_of(tensor: tf.Tensor) -> int:
    """Returns the size in bytes of a tensor with a known shape. A string counts as one byte."""
    return int(tensor.shape.num_elements() or 0) * max(1, tensor.dtype.size or 1)
