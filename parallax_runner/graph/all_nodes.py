"""Iterates over the nodes of a GraphDef, including the nodes inside its functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def nodes_in_functions(graph_def: Any) -> Iterator[Any]:
    """Yields the nodes of all functions in the library."""
    for function in graph_def.library.function:
        yield from function.node_def


def all_nodes(graph_def: Any) -> Iterator[Any]:
    """Yields the nodes of the graph, followed by the nodes of its functions."""
    yield from graph_def.node
    yield from nodes_in_functions(graph_def)
