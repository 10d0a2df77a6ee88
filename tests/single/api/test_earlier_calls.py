"""What earlier calls of `fit` in a process did to the data of a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.api import earlier_calls
from parallax_runner.api.earlier_calls import Before, EarlierCall, GivenData, before


def dataset() -> Any:
    return tf.data.Dataset.range(8).batch(4)


def history(epochs: int, validations: int) -> Any:
    made = keras.callbacks.History()
    made.epoch, made.history = list(range(epochs)), {"loss": [0.0] * epochs, "val_loss": [0.0] * validations}
    return made


def test_a_call_continues_the_calls_with_the_same_dataset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in Keras, another dataset begins with its first pass, and arrays are shuffled in another way in each call."""
    one, other, x = dataset(), dataset(), np.arange(4)
    calls = [(one, other, 5, history(2, 1)), (x, other, 7, history(3, 3)), (one, None, 9, history(4, 0))]
    finished = [EarlierCall.of(tmp_path, GivenData.of(*data), steps, made) for *data, steps, made in calls]
    monkeypatch.setattr(earlier_calls, "finished", finished)
    assert before(GivenData.of(one, one)) == Before(14, (2, 4), 0)
    assert before(GivenData.of(other, other)) == Before(0, (), 4)
    assert before(GivenData.of(x, (x, x))) == Before(21, (2, 3, 4), 0)
