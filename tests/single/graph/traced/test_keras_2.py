"""Models of Keras 2 are refused in words of their own."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from parallax_runner.errors import CaptureError
from parallax_runner.graph.traced.keras_2 import check_not_keras_2


def derived_from(module: str) -> Any:
    """An object whose class derives from a class of this module, as models of TensorFlow Recommenders do."""
    base = type("Model", (), {"__module__": module})
    return type("TwoTower", (base,), {"__module__": "train"})()


@pytest.mark.parametrize("module", ["tf_keras.src.engine.training", "tensorflow.python.keras.engine.training"])
def test_a_model_of_keras_2(module: str) -> None:
    with pytest.raises(CaptureError, match=r"^fit got a TwoTower from train, .*Keras 2.* unset TF_USE_LEGACY_KERAS"):
        check_not_keras_2(derived_from(module), "fit got")


@pytest.mark.parametrize("made", [len, object(), keras.layers.Dense(1), derived_from("keras_rs.src.layers")])
def test_anything_else_is_not_refused_here(made: Any) -> None:
    check_not_keras_2(made, "fit got")
