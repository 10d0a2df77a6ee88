"""Imports only the part of TensorFlow that a process needs, because imports take most of the startup time.

No process imports Keras, which takes a third of the import time, before `tf.keras` is first used. A server imports only
a part of TensorFlow.
"""

import ctypes
import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from parallax_runner.process.stage_times import stage


def import_tensorflow() -> None:
    """Imports TensorFlow. Call this function before you import any module that imports TensorFlow. Later calls do
    nothing."""
    if "tensorflow" in sys.modules:
        return
    with stage("import TensorFlow"), _keras_later(), _no_collections():
        import tensorflow.compat.v1  # noqa: F401


def load_cusolver() -> None:
    """Loads cuSOLVER if it is installed as a Python package. Call this function before TensorFlow looks for GPUs.

    TensorFlow 2.21 uses no GPU if it does not find cuSOLVER. It looks in the folders of CUDA's other packages, but not
    in the folder of this package. It does find a library that has already been loaded.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        for library in Path(folder, "cusolver", "lib").glob("libcusolver.so.*"):
            with suppress(OSError):  # the library is incomplete; TensorFlow then uses no GPU, as it does without it
                ctypes.CDLL(str(library))


def import_servers_part() -> None:
    """Imports the part of TensorFlow that a server needs, without the package's `__init__`, which imports four fifths
    of all modules. The process must not import `tensorflow` afterwards. All kernels are registered, except those that
    Python code loads later (in the whole package, only `AudioMicrofrontend`)."""
    if "tensorflow" in sys.modules:
        return
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")
    with stage("import TensorFlow"):
        part = ModuleType("tensorflow")
        part.__path__ = list(spec.submodule_search_locations)
        part.__spec__ = spec
        sys.modules["tensorflow"] = part
        # The package's `__init__` sets both. TensorFlow's code reads the variable when it is imported.
        os.environ["TF2_BEHAVIOR"] = "1"
        importlib.import_module("tensorflow.python.tf2").enable()
        importlib.import_module("tensorflow.python.training.server_lib")


@contextmanager
def _no_collections() -> Iterator[None]:
    """Turns the garbage collector off during the block, and then keeps it from scanning the objects of the imported
    modules.

    The modules stay until the process exits. Scanning their objects takes a sixth of the import time, and as much again
    while a graph is built.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


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
