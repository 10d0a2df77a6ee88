"""Faults that the capture and distribution of a traced step may have, planted into a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest import mock

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.growing import key_calls
from parallax_runner.graph.traced import capture_step, order, variables
from parallax_runner.rewrite import replica
from parallax_runner.rewrite.every_route import merge
from parallax_runner.routes.allgather import gather
from parallax_runner.routes.alltoall import grow


def planted(fault: str | None) -> AbstractContextManager[Any]:
    """Captures and rewrites with this fault; does nothing for None and for a fault of the rewritten step."""
    return FAULTS[fault]() if fault in FAULTS else nullcontext()


@contextmanager
def dropped_dependency() -> Iterator[None]:
    """Reads do not wait for the writes before them: an update sees the slots of the step before."""

    def wait_for_nothing(graph: tf.Graph) -> None:
        order.wait_for_values(graph)
        for op in graph.get_operations():
            if op.type in order.READS:
                edit.set_control_inputs(op, [])

    with mock.patch.object(capture_step, "wait_for_values", wait_for_nothing):
        yield


@contextmanager
def one_seed() -> Iterator[None]:
    """All ranks get the draws of rank 0."""
    original = replica.derive_seeds

    def as_rank_0(graph_def: tf.GraphDef, *, rank: int, **arguments: Any) -> tf.GraphDef:
        return original(graph_def, rank=0, **arguments)

    with mock.patch.object(replica, "derive_seeds", as_rank_0):
        yield


@contextmanager
def unmerged_slices() -> Iterator[None]:
    """The rows of one id reach the update one by one, from a rank and from several."""

    def as_they_are(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return values, indices

    with mock.patch.object(merge, "merge", as_they_are), mock.patch.object(gather, "merge", as_they_are):
        yield


@contextmanager
def ignored_weights() -> Iterator[None]:
    """Initial values are drawn by the initializer, although the model's function has set others."""
    original = variables.Variables.all

    def with_initializers(this: variables.Variables) -> list[variables.TracedVariable]:
        with mock.patch.object(variables.UnsetVariable, "is_initialized", lambda _: False):
            return original(this)

    with mock.patch.object(variables.Variables, "all", with_initializers):
        yield


@contextmanager
def initialized_again() -> Iterator[None]:
    """Every step ends by resetting a bias to its initial value; a random one would be refused, as every rank draws its
    own."""
    original = capture_step.import_step

    def import_step(trace: Any, wanted: Any, made: Any, features: Any, **arguments: Any) -> tuple[Any, list[Any]]:
        found, writes = original(trace, wanted, made, features, **arguments)
        if writes:
            bias = next(one for one in made.values() if one.op.name.endswith("/bias"))
            with tf.control_dependencies(writes):
                writes = [*writes, bias.assign(bias.initial_value, read_value=False)]
        return found, writes

    with mock.patch.object(capture_step, "import_step", import_step):
        yield


@contextmanager
def two_rows_of_a_key() -> Iterator[None]:
    """A new key that several ranks send to its owner in one step gets a row for each of them."""

    def as_they_are(keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return keys, tf.range(tf.size(keys))

    with mock.patch.object(key_calls, "_ascending", as_they_are):
        key_calls._inserting.cache_clear()
        yield
    key_calls._inserting.cache_clear()


@contextmanager
def kept_slots() -> Iterator[None]:
    """A key that gets the row of an evicted key also gets its slots."""
    original = grow._write

    def rows_only(own: Any, places: tf.Tensor, values: tf.Tensor) -> tf.Operation:
        is_slot = not own.handle.op.name.endswith("/rows/own_rows")
        return original(own, places[:0], values[:0]) if is_slot else original(own, places, values)

    with mock.patch.object(grow, "_write", rows_only):
        yield


@contextmanager
def one_count_for_each_rank() -> Iterator[None]:
    """A key that occurs several times on a rank is counted once."""
    with mock.patch.object(grow, "_own_times", lambda rewrite, times: tf.ones_like(times)):
        yield


FAULTS: dict[str | None, Callable[[], AbstractContextManager[None]]] = {
    "dropped_dependency": dropped_dependency,
    "one_seed": one_seed,
    "unmerged_slices": unmerged_slices,
    "ignored_weights": ignored_weights,
    "initialized_again": initialized_again,
    "two_rows_of_a_key": two_rows_of_a_key,
    "kept_slots": kept_slots,
    "one_count_for_each_rank": one_count_for_each_rank,
}
