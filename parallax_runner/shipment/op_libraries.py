"""Finds the libraries that define the custom ops of a graph, and loads them in another process.

TensorFlow does not record the path of a library that `tf.load_op_library` has loaded. The libraries of this process are
therefore searched for the names of the ops.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.errors import LaunchError
from parallax_runner.graph.all_nodes import all_nodes

# The attribute by which TensorFlow marks the module of a library that it has loaded.
PLUGIN = "_IS_TENSORFLOW_PLUGIN"


def libraries_of(graph_defs: Iterable[Any]) -> list[str]:
    """Returns the absolute paths of the libraries that define the custom ops of these graphs.

    Raises LaunchError if the library of an op is not found.
    """
    used = {node.op for graph_def in graph_defs for node in all_nodes(graph_def)}
    found: list[str] = []
    for op in _custom_ops(used):
        path = next((path for path in (*found, *_mapped_libraries()) if _defines(path, op)), None)
        if path is None:
            raise LaunchError(
                f"the op «{op}» comes from a library of this process that was not found, so no worker can load it; "
                "load the library with tf.load_op_library and its absolute path"
            )
        if path not in found:
            found.append(path)
    return found


def load_libraries(paths: Iterable[str]) -> None:
    """Loads op libraries. Raises LaunchError if one of them cannot be loaded."""
    for path in paths:
        try:
            tf.load_op_library(path)
        except (tf.errors.OpError, RuntimeError, OSError) as error:
            raise LaunchError(
                f"{path}: this library defines an op of the model, but cannot be loaded in this process: {error}. "
                "Install the library at the same path on each host"
            ) from error


def _custom_ops(used: Iterable[str]) -> list[str]:
    """Returns the ops among `used` that TensorFlow itself does not have."""
    has_libraries = any(PLUGIN in getattr(module, "__dict__", {}) for module in list(sys.modules.values()))
    if not has_libraries:
        return []
    return sorted(op for op in used if not op.startswith("_") and not hasattr(tf.raw_ops, op))


def _mapped_libraries() -> Iterator[str]:
    """Yields the shared libraries of this process outside TensorFlow's own package."""
    own = tf.sysconfig.get_lib()
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if line.count("/") and ".so" in line)
    yield from (path for path in paths if not path.startswith(own) and Path(path).is_file())


def _defines(path: str, op: str) -> bool:
    """Returns whether a library contains the name of an op as a string, which the kernel of the op refers to."""
    return op.encode() + b"\0" in Path(path).read_bytes()
