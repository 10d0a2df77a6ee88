"""Faults of a step that prepares the next one: the comparison must find each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias
from unittest import mock

import tensorflow.compat.v1 as tf

from parallax_runner.routes.alltoall import lookahead_request
from parallax_runner.routes.alltoall.row_exchange import Exchange
from parallax_runner.train.lookahead_steps import Batch, StepsAhead

Method: TypeAlias = Callable[..., dict[tf.Tensor, Any]]


@contextmanager
def planted(fault: str | None) -> Iterator[None]:
    """Makes rewriting produce a graph with the fault."""
    if fault == "rows_before_their_update":
        with (
            mock.patch.object(lookahead_request, "are_requested", none_marked),
            mock.patch.object(StepsAhead, "start", prepared_first(StepsAhead.start)),
        ):
            yield
    elif fault == "draws_made_twice":
        with mock.patch.object(StepsAhead, "start", twice(StepsAhead.start)):
            yield
    else:
        yield


def none_marked(exchange: Exchange, _: Any) -> tf.Tensor:
    """Marks no row as late."""
    return tf.zeros_like(exchange.own.whole, tf.bool)


def prepared_first(start: Method) -> Method:
    """Prepares the next step before the step runs, so a row that is sent too early certainly has its old value."""

    def started(steps: StepsAhead, batch: Batch, following: Batch | None) -> dict[tf.Tensor, Any]:
        feeds = start(steps, batch, following)
        if steps._thread is not None:
            steps._thread.join()
        return feeds

    return started


def twice(start: Method) -> Method:
    """Draws once too often for the first step."""

    def started(steps: StepsAhead, batch: Batch, following: Batch | None) -> dict[tf.Tensor, Any]:
        if not steps._prepared:
            steps._prepare(steps.ahead.first, batch)
        return start(steps, batch, following)

    return started
