"""Patches TensorFlow and Keras modules in a script that imports this package and TensorFlow in any order.

`gradients_hook` wraps TensorFlow's gradient function. The hook needs TensorFlow, and importing TensorFlow takes
seconds, which is too slow for the command line. The hook is therefore installed when TensorFlow's own gradients module
is imported, or immediately if that module is already imported. The generators' states are recorded at the same time.
`keras_seeds` replaces the generator that draws Keras' seeds.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

GRADIENTS = "tensorflow.python.ops.gradients_util"
KERAS_SEEDS = "keras.src.random.seed_generator"


def install() -> None:
    """Patches each module in `_CHANGES`: immediately if it is already imported, otherwise on import. Later calls have
    no effect."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    waiting = dict(_CHANGES)
    if GRADIENTS in sys.modules:
        importlib.import_module("parallax_runner.graph.gradients_hook")
        _note_generators()
        del waiting[GRADIENTS]
    if KERAS_SEEDS in sys.modules:
        _own_keras_seeds(sys.modules[KERAS_SEEDS])
        del waiting[KERAS_SEEDS]
    sys.meta_path.insert(0, _Finder(waiting))


@contextmanager
def patched_on_import(changes: Mapping[str, Callable[[Any], None]]) -> Iterator[None]:
    """Patches each module in `changes`, by its name, if it is imported for the first time during the `with` block."""
    finder = _Finder({name: change for name, change in changes.items() if name not in sys.modules})
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _record_gradients(module: Any) -> None:
    original = module._GradientsHelper

    # TensorFlow is still being imported, so code that needs all of TensorFlow runs only at the first call.
    @functools.wraps(original)
    def first_call(*args: Any, **kwargs: Any) -> Any:
        importlib.import_module("parallax_runner.graph.gradients_hook").install()
        return module._GradientsHelper(*args, **kwargs)

    # gradients_hook treats a function with `__wrapped__` as its own wrapper. Otherwise it wraps the `unhooked`
    # function.
    del first_call.__wrapped__
    first_call.unhooked = original  # type: ignore[attr-defined]
    module._GradientsHelper = first_call
    _note_generators()


def _note_generators() -> None:
    importlib.import_module("parallax_runner.graph.generators").begin.note()


def _own_keras_seeds(module: Any) -> None:
    importlib.import_module("parallax_runner.graph.keras_seeds").install(module)


_CHANGES: dict[str, Callable[[Any], None]] = {GRADIENTS: _record_gradients, KERAS_SEEDS: _own_keras_seeds}


class _Finder(MetaPathFinder):
    """Finds modules in the usual way, and patches them after they are loaded."""

    def __init__(self, waiting: dict[str, Callable[[Any], None]]) -> None:
        self._waiting = waiting

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        change = self._waiting.pop(fullname, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, change)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader, change: Callable[[Any], None]) -> None:
        self._loader, self._change = loader, change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._change(module)
