"""Whose rows can be updated later than others of the same step, and why those of others cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from tests.single.small_models import OPTIMIZERS, captured, clip, infos


def reason(optimizer: str = "adagrad", process: Callable[[list[Any]], list[Any]] = list) -> str | None:
    return infos(captured(optimizer=optimizer, process=process))["table"].tied_rows


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_that_writes_by_ids_treats_each_row_alone(optimizer: str) -> None:
    found = reason(optimizer)
    assert found is None if optimizer != "adam" else found is not None and "needs all rows of a step" in found


def test_what_is_computed_of_each_row_alone() -> None:
    def halved(gradients: list[Any]) -> list[Any]:
        return [
            tf.IndexedSlices(tf.clip_by_value(one.values * 0.5, -1.0, 1.0), one.indices, one.dense_shape)
            if isinstance(one, tf.IndexedSlices)
            else one
            for one in gradients
        ]

    assert reason(process=halved) is None


def test_a_norm_needs_all_rows() -> None:
    found = reason(process=clip)
    assert found is not None and found.endswith("(L2Loss) needs all rows of a step")


def test_who_else_reads_the_gradient_needs_all_rows() -> None:
    """The gradients of the other variables are scaled by those of the table."""

    def scaled(gradients: list[Any]) -> list[Any]:
        (sparse,) = [one for one in gradients if isinstance(one, tf.IndexedSlices)]
        factor = tf.reduce_max(tf.abs(sparse.values))
        return [one if one is sparse else one * factor for one in gradients]

    found = reason(process=scaled)
    assert found is not None and "also reads the gradient" in found
