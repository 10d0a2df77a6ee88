"""Imports the graphs that draw the initial values of variables.

All graphs are imported together, because each import takes time in proportion to the graph that it adds to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf


@dataclass(frozen=True)
class Draw:
    """A graph that draws an initial value.

    The names of the imported ops begin with `prefix`. `fed` maps names of tensors to the tensors that replace them.
    """

    prefix: str
    definition: tf.GraphDef
    fed: Mapping[str, Any]


def import_draws(draws: Iterable[Draw]) -> None:
    """Imports the graphs into the default graph. Each op has its name in its graph, after the prefix."""
    joined, fed = tf.GraphDef(), dict[str, Any]()
    functions = set[str]()
    for draw in draws:
        joined.versions.CopyFrom(draw.definition.versions)
        joined.node.extend(_renamed(node, draw.prefix) for node in draw.definition.node)
        library = draw.definition.library
        joined.library.function.extend(one for one in library.function if one.signature.name not in functions)
        joined.library.gradient.extend(one for one in library.gradient if one.function_name not in functions)
        functions |= {one.signature.name for one in library.function}
        fed |= {f"{draw.prefix}{name}": tensor for name, tensor in draw.fed.items()}
    if joined.node:
        tf.import_graph_def(joined, fed, name="")


def _renamed(node: tf.NodeDef, prefix: str) -> tf.NodeDef:
    """Returns the node with the prefix before its name and the names of its inputs."""
    renamed = tf.NodeDef()
    renamed.CopyFrom(node)
    renamed.name = f"{prefix}{node.name}"
    renamed.input[:] = [f"^{prefix}{name[1:]}" if name.startswith("^") else f"{prefix}{name}" for name in node.input]
    return renamed
