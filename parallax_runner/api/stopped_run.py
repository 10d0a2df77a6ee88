"""Leaves the model of a stopped `fit` as Keras leaves it: with the weights of the last step that was saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from parallax_runner.config.actions import action_named
from parallax_runner.driver.ended import RunEnded
from parallax_runner.driver.report import tell_notes
from parallax_runner.errors import CheckpointError
from parallax_runner.export.keras_weights import load_into_keras


@contextmanager
def with_weights_of_stopped_run(model: Any) -> Iterator[None]:
    """If a signal stops the run in the block, loads the newest checkpoint into the model and its optimizer before
    RunEnded is passed on."""
    try:
        yield
    except RunEnded as end:
        is_stopped = action_named(end.summary.action).trains and end.summary.status == "interrupted"
        if is_stopped and end.summary.ckpt_path is not None:
            _load(model, end.summary.ckpt_path)
        raise


def _load(model: Any, ckpt_path: str) -> None:
    try:
        load_into_keras(model, ckpt_path)
    except CheckpointError as error:  # that the run was stopped is more important
        tell_notes([f"the model keeps the weights that it has: {error}"])
