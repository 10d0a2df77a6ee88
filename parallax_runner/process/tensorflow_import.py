"""Imports TensorFlow without Keras, because Keras takes a third of the import time. `tf.keras` is loaded on its first
use."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from parallax_runner.process.stage_times import stage


def import_tensorflow() -> None:
    """Imports TensorFlow. Call this function before you import any module that imports TensorFlow. Later calls do
    nothing."""
    if "tensorflow" in sys.modules:
        return
    with stage("import TensorFlow"), _keras_later():
        import tensorflow.compat.v1  # noqa: F401


@contextmanager
def _keras_later() -> Iterator[None]:
    """Sets a variable that makes TensorFlow look for a Keras package that is not installed, and continue without Keras.
    `tf.keras` looks for Keras only when it is used, and by then the variable has been removed again."""
    if "TF_USE_LEGACY_KERAS" in os.environ or importlib.util.find_spec("tf_keras") is not None:
        yield
        return
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    try:
        yield
    finally:
        del os.environ["TF_USE_LEGACY_KERAS"]
