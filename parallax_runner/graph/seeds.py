"""Seeds of random ops: each rank draws its own stream of numbers, but initial values are equal on all ranks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import op_def_registry

INITIAL = -1
# The op that makes a key and a counter of a seed that is an input.
KEY_OF_SEED = "StatelessRandomGetKeyCounter"


def derive_seeds(
    graph_def: tf.GraphDef, *, seed: int, rank: int, first_step: int, initializers: Iterable[str]
) -> tf.GraphDef:
    """Returns a copy of `graph_def` in which every random op has its own seeds.

    The seeds are derived from (`seed`, `rank`, `first_step`, op name). For ops that an initializer needs, the seeds are
    derived from (`seed`, op name) only, to make initial values equal on all ranks. `first_step` is included because a
    new session restarts each op's stream, and a resumed run must not repeat its earlier draws.

    If an op takes its seed or its key as an input, as in Keras layers and with a `tf.random.Generator`, that seed is
    combined with a seed for the rank. Here, `first_step` is not included, because checkpoints contain the input seed.
    """
    seeded = tf.GraphDef()
    seeded.CopyFrom(graph_def)
    initial = _needed_by(seeded, initializers)
    for node, given in _with_given_seed(seeded.node):
        if node.name not in initial:
            seeded.node.extend(_combined(node, given, f"{seed}/{rank}/{node.name}", inside=False))
    for node in seeded.node:
        if "seed2" in node.attr:
            _set_seeds(node, node.name, seed, INITIAL if node.name in initial else rank, first_step)
    initial_functions = called_by([node for node in seeded.node if node.name in initial], seeded)
    # Function names contain a per-process counter, so functions are identified by their place in the library.
    functions = sorted(seeded.library.function, key=lambda function: _natural(function.signature.name))
    for place, function in enumerate(functions):
        as_rank = INITIAL if function.signature.name in initial_functions else rank
        _seed_function(function, f"function {place}", seed, as_rank, first_step)
    return seeded


def _seed_function(function: Any, name: str, seed: int, rank: int, first_step: int) -> None:
    """Gives each random op in a function its own seeds. `name` identifies the function."""
    if rank != INITIAL:
        for node, given in _with_given_seed(function.node_def):
            function.node_def.extend(_combined(node, given, f"{seed}/{rank}/{name}/{node.name}", inside=True))
    for node in function.node_def:
        if "seed2" in node.attr:
            _set_seeds(node, f"{name}/{node.name}", seed, rank, first_step)


class GivenSeed(NamedTuple):
    """An input that decides what an op draws: its position, its dtype and the number of its elements."""

    place: int
    dtype: tf.DType
    size: int


def _with_given_seed(nodes: Iterable[tf.NodeDef]) -> list[tuple[tf.NodeDef, GivenSeed]]:
    """Returns the nodes that take a seed or a key as an input, in a list of its own: nodes can be added meanwhile.

    A key that has been made of a seed differs by rank already, so it is left out.
    """
    nodes = list(nodes)
    of_seeds = {node.name for node in nodes if node.op == KEY_OF_SEED}
    found = [(node, given) for node in nodes if (given := given_seed(node)) is not None]
    return [(node, given) for node, given in found if _producer(node.input[given.place]) not in of_seeds]


def given_seed(node: tf.NodeDef) -> GivenSeed | None:
    """Returns the input that is an op's seed or key, or None if the op takes neither as an input."""
    if not node.op.startswith("Stateless"):
        return None
    definition = op_def_registry.get(node.op)
    names = [argument.name for argument in definition.input_arg] if definition else []
    if "seed" in names:
        return GivenSeed(names.index("seed"), tf.as_dtype(node.attr["Tseed"].type), size=2)
    if "key" in names:
        return GivenSeed(names.index("key"), tf.uint64, size=1)
    return None


def _producer(tensor: str) -> str:
    """Returns the name of the node that produces an input."""
    return tensor.removeprefix("^").split(":")[0]


def draws(node: tf.NodeDef) -> bool:
    """Returns whether an op draws random numbers."""
    return "seed2" in node.attr or given_seed(node) is not None


def stream_draws(graph_def: tf.GraphDef, ends: Iterable[str]) -> list[tf.NodeDef]:
    """Returns the ops that draw from a stream of their own, among the ops that `ends` need and the functions that these
    ops call.

    Such an op draws other numbers in a graph than in eager execution. An op that takes its seed as an input draws the
    same numbers in both.
    """
    needed = _needed_by(graph_def, ends)
    nodes = [node for node in graph_def.node if node.name in needed]
    called = called_by(nodes, graph_def)
    inner = [node for one in graph_def.library.function if one.signature.name in called for node in one.node_def]
    return [node for node in (*nodes, *inner) if "seed2" in node.attr]


def _combined(node: tf.NodeDef, given: GivenSeed, key: str, *, inside: bool) -> list[tf.NodeDef]:
    """Combines the seed that `node` reads with a seed that is derived from `key`, and returns the nodes that were
    added.

    If the node is `inside` a function, the names of tensors contain the name of the op's output argument.
    """
    digest = hashlib.sha256(key.encode()).digest()
    own = np.frombuffer(digest[: given.size * given.dtype.size], given.dtype.as_numpy_dtype)
    constant = tf.NodeDef(name=f"{node.name}/seed_of_rank", op="Const", device=node.device)
    constant.attr["dtype"].type = given.dtype.as_datatype_enum
    constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(own, given.dtype))
    # If a seed is given as a list, TensorFlow itself names it «…/seed».
    combined = tf.NodeDef(name=f"{node.name}/combined_seed", op="BitwiseXor", device=node.device)
    combined.input[:] = [node.input[given.place], f"{constant.name}:output:0" if inside else constant.name]
    combined.attr["T"].type = given.dtype.as_datatype_enum
    node.input[given.place] = f"{combined.name}:z:0" if inside else combined.name
    return [constant, combined]


def _natural(name: str) -> list[tuple[int, str]]:
    """Returns a sort key that compares numbers within names by value, because a counter can go from 9 to 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def called_by(nodes: Iterable[tf.NodeDef], graph_def: tf.GraphDef) -> set[str]:
    """Returns the names of the functions that the nodes call, directly or through other functions."""
    bodies = {function.signature.name: function.node_def for function in graph_def.library.function}
    found: set[str] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        called = {node.op} | {func.name for attr in node.attr.values() for func in (attr.func, *attr.list.func)}
        for name in called & (bodies.keys() - found):
            found.add(name)
            stack.extend(bodies[name])
    return found


def _set_seeds(node: tf.NodeDef, name: str, seed: int, rank: int, first_step: int) -> None:
    key = f"{seed}/{rank}/{0 if rank == INITIAL else first_step}/{name}"
    digest = hashlib.sha256(key.encode()).digest()
    # If both seeds were zero, TensorFlow would choose a random seed.
    node.attr["seed"].i = int.from_bytes(digest[:4], "little") >> 1 | 1
    node.attr["seed2"].i = int.from_bytes(digest[4:8], "little") >> 1


def _needed_by(graph_def: tf.GraphDef, starts: Iterable[str]) -> set[str]:
    inputs = {node.name: node.input for node in graph_def.node}
    found: set[str] = set()
    stack = list(starts)
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack.extend(_producer(tensor) for tensor in inputs[name])
    return found
