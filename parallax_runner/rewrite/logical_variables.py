"""Lists a replica's variables with the names and shapes that checkpoints use."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph.single_device_graph import Variable
from parallax_runner.rewrite.distributed_graph import LogicalVariable, Piece
from parallax_runner.rewrite.rewrite_state import Rewrite


def logical_variables(rewrite: Rewrite) -> tuple[LogicalVariable, ...]:
    """Returns the variables that checkpoints contain, with their pieces. A variable that the model has partitioned has
    only one entry."""
    pieces: dict[str, list[Piece]] = {}
    shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    for variable in rewrite.single.variables:
        if variable.saved:
            shapes[variable.full_name] = (variable.full_shape, variable.dtype)
            pieces.setdefault(variable.full_name, []).extend(_pieces(rewrite, variable))
    return tuple(
        LogicalVariable(name=name, shape=shape, dtype=tf.as_dtype(dtype), pieces=tuple(pieces[name]))
        for name, (shape, dtype) in shapes.items()
    )


def _pieces(rewrite: Rewrite, variable: Variable) -> list[Piece]:
    placement = rewrite.placement_of(variable.name)
    if placement is not None:
        return placement.pieces(rewrite, variable)
    handle = rewrite.op(variable.name).outputs[0]
    is_shared = variable.name in rewrite.counters
    return [Piece(handle=handle, offset=variable.offset, shape=variable.shape, is_shared=is_shared)]
