"""Cuts whole values of variables into the pieces that a model's own partitioner made, and joins such pieces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from parallax_runner.errors import ParallaxError
from parallax_runner.graph.single_device_graph import Variable

Values = Mapping[str, np.ndarray]


def to_pieces(variables: Iterable[Variable], values: Values) -> dict[str, np.ndarray]:
    """Returns the pieces of the saved variables, by the names of the pieces, from whole values by full names.

    Raises ParallaxError if a variable is missing or unknown, or has the wrong shape.
    """
    saved = [variable for variable in variables if variable.saved]
    shapes = {variable.full_name: variable.full_shape for variable in saved}
    missing, unknown = sorted(set(shapes) - set(values)), sorted(set(values) - set(shapes))
    if missing or unknown:
        raise ParallaxError(f"the values do not match the graph's variables: missing {missing}, unknown {unknown}")
    for name, shape in shapes.items():
        if np.shape(values[name]) != shape:
            raise ParallaxError(f"the value of «{name}» has shape {np.shape(values[name])}, expected {shape}")
    return {variable.name: np.asarray(values[variable.full_name])[_region(variable)] for variable in saved}


def from_pieces(variables: Iterable[Variable], pieces: Values) -> dict[str, np.ndarray]:
    """Returns whole values by full names, from the pieces by their names."""
    values: dict[str, np.ndarray] = {}
    for variable in variables:
        piece = pieces[variable.name]
        full = values.setdefault(variable.full_name, np.empty(variable.full_shape, np.asarray(piece).dtype))
        full[_region(variable)] = piece
    return values


def _region(variable: Variable) -> tuple[slice, ...]:
    return tuple(slice(start, start + size) for start, size in zip(variable.offset, variable.shape, strict=True))
