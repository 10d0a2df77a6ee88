"""Faults of a step that prepares the next one: the comparison must find each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias
from unittest import mock

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.routes.alltoall import ahead, behind
from parallax_runner.rewrite.routes.alltoall.row_exchange import Exchange
from parallax_runner.rewrite.routes.ps import ask_ahead
from parallax_runner.train.ahead import Batch, StepsAhead

Method: TypeAlias = Callable[..., dict[tf.Tensor, Any]]
# Longer than a step of the matrix needs to read its rows.
SECS = 0.3


@contextmanager
def planted(fault: str | None) -> Iterator[None]:
    """Makes rewriting produce a graph with the fault."""
    if fault == "rows_before_their_update":
        with (
            mock.patch.object(ahead, "are_requested", none_marked),
            mock.patch.object(ask_ahead, "are_among", none_among),
            mock.patch.object(StepsAhead, "start", prepared_first(StepsAhead.start)),
        ):
            yield
    elif fault == "updates_after_a_read":
        with (
            mock.patch.object(behind, "are_requested", none_marked),
            mock.patch.object(StepsAhead, "_found", rows_last(StepsAhead._found)),
        ):
            yield
    elif fault == "draws_made_twice":
        with mock.patch.object(StepsAhead, "start", twice(StepsAhead.start)):
            yield
    else:
        yield


def none_marked(exchange: Exchange, _: Any) -> tf.Tensor:
    """Marks no row as late, and none to go now."""
    return tf.zeros_like(exchange.own.whole, tf.bool)


def none_among(keys: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
    """Marks no row on servers as late."""
    return tf.zeros_like(keys, tf.bool)


def prepared_first(start: Method) -> Method:
    """Prepares the next step before the step runs, so a row that is sent too early certainly has its old value."""

    def started(steps: StepsAhead, batch: Batch, following: Batch | None) -> dict[tf.Tensor, Any]:
        feeds = start(steps, batch, following)
        if steps._thread is not None:
            steps._thread.join()
        return feeds

    return started


def rows_last(find: Method) -> Method:
    """Applies the rest of a step's update only after the next step has read its rows."""

    def found(steps: StepsAhead, carried: Any, *feeds_and_ops: Any) -> dict[tf.Tensor, Any]:
        if carried is steps.ahead.rows:
            time.sleep(SECS)
        return find(steps, carried, *feeds_and_ops)

    return found


def twice(start: Method) -> Method:
    """Draws once too often for the first step."""

    def started(steps: StepsAhead, batch: Batch, following: Batch | None) -> dict[tf.Tensor, Any]:
        if not steps._prepared:
            steps._prepare_first(batch)
        return start(steps, batch, following)

    return started
