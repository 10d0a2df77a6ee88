"""Models of Keras 2, which cannot be distributed."""

from __future__ import annotations

from typing import Any

from parallax_runner.errors import CaptureError

# The package, and the copy within TensorFlow.
MODULES = ("tf_keras.", "tensorflow.python.keras.")


def check_not_keras_2(made: Any, given: str) -> None:
    """Raises CaptureError for an object of Keras 2, without importing Keras 2. `given` begins the message, as in «fit
    got»."""
    kind = type(made)
    if any(f"{base.__module__}.".startswith(MODULES) for base in kind.__mro__):
        raise CaptureError(
            f"{given} a {kind.__qualname__} from {kind.__module__}, which belongs to tf_keras (Keras 2); only Keras 3 "
            "models can be distributed: build the model with «import keras» instead of «import tf_keras», and unset "
            "TF_USE_LEGACY_KERAS. TensorFlow Recommenders needs Keras 2; keras_rs has its layers for Keras 3 "
            "(docs/keras-rs.md)"
        )
