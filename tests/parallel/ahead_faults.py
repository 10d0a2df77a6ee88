"""Faults of a step that prepares the next one: the comparison must find each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.routes.alltoall import ahead, behind
from parallax_runner.train.ahead import Batch, StepsAhead

# Faults in which no row is marked: none is late, or none goes now.
MARKS_IN = {"rows_before_their_update": ahead, "updates_after_a_read": behind}


@contextmanager
def planted(fault: str | None) -> Iterator[None]:
    """Has rewriting make a graph with the fault."""
    if fault in MARKS_IN:
        with mock.patch.object(MARKS_IN[fault], "are_among", lambda places, *_: tf.zeros_like(places, tf.bool)):
            yield
    elif fault == "draws_made_twice":
        with mock.patch.object(StepsAhead, "start", twice(StepsAhead.start)):
            yield
    else:
        yield


def twice(start: Callable[..., dict[tf.Tensor, Any]]) -> Callable[..., dict[tf.Tensor, Any]]:
    """Draws for the first step once more than it needs."""

    def started(steps: StepsAhead, batch: Batch, following: Batch | None) -> dict[tf.Tensor, Any]:
        if not steps._prepared:
            steps._prepare_first(batch)
        return start(steps, batch, following)

    return started
