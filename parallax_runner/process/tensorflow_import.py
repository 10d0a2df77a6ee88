"""Imports TensorFlow without Keras, more than a third of its import time; `tf.keras` works from its first use on."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from parallax_runner.process.stage_times import stage


def import_tensorflow() -> None:
    """What a process calls that needs TensorFlow, before anything that imports it; later calls do nothing."""
    if "tensorflow" in sys.modules:
        return
    with stage("import TensorFlow"), _keras_later():
        import tensorflow.compat.v1  # noqa: F401


@contextmanager
def _keras_later() -> Iterator[None]:
    """TensorFlow then looks for a Keras that is not installed, and goes on without; `tf.keras` asks for its Keras only
    when it is used, and by then finds the variable as the user has it."""
    if "TF_USE_LEGACY_KERAS" in os.environ or importlib.util.find_spec("tf_keras") is not None:
        yield
        return
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    try:
        yield
    finally:
        del os.environ["TF_USE_LEGACY_KERAS"]
