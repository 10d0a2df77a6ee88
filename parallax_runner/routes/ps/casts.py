"""Decides whether the worker or the server casts a tensor. The choice minimizes the number of bytes that are sent."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.rewrite.rewrite_state import Rewrite


def narrow_dtype(rewrite: Rewrite, tensors: Iterable[tf.Tensor]) -> tf.DType | None:
    """Returns the smaller dtype that all readers outside the update region cast these tensors to, or None if there is
    no such dtype."""
    if not rewrite.plan.options.ps.boundary_between_workers_and_servers:
        return None
    found = {dtype for tensor in tensors for dtype in _wanted(rewrite, tensor)}
    if len(found) != 1:
        return None
    (dtype,) = found
    return dtype if all(dtype.size < tensor.dtype.size for tensor in tensors) else None


def connect_casts(rewrite: Rewrite, tensor: tf.Tensor, narrow: tf.Tensor) -> None:
    """Makes the readers of casts of `tensor` read `narrow`, which is already cast."""
    for cast in _readers(rewrite, tensor):
        edit.reconnect(cast.outputs[0], narrow, where=lambda _: True)
        rewrite.stands_for[cast.outputs[0].name] = narrow


def before_widening(rewrite: Rewrite, tensor: tf.Tensor) -> tf.Tensor:
    """If `tensor` was cast from a smaller dtype, returns the tensor before the cast, otherwise `tensor`."""
    if not rewrite.plan.options.ps.boundary_between_workers_and_servers or tensor.op.type != "Cast":
        return tensor
    source = tensor.op.inputs[0]
    return source if source.dtype.size < tensor.dtype.size else tensor


def _wanted(rewrite: Rewrite, tensor: tf.Tensor) -> set[tf.DType]:
    """Returns the dtypes in which a tensor is read. If a reader is a cast, the dtype of the cast's result counts."""
    return {(op.outputs[0] if op.type == "Cast" else tensor).dtype for op in _readers(rewrite, tensor)}


def _readers(rewrite: Rewrite, tensor: tf.Tensor) -> list[tf.Operation]:
    """Returns the consumers of a tensor that are outside the update region. Replaces an Identity by its consumers."""
    found = []
    for op in sorted(tensor.consumers(), key=lambda op: op.name):
        if op not in rewrite.region:
            found += _readers(rewrite, op.outputs[0]) if op.type == "Identity" else [op]
    return found
