"""Lets gradients be recorded in a script that imports this package and TensorFlow in any order; imports neither.

`gradients_hook` wraps TensorFlow's gradient function. It needs TensorFlow, whose import takes seconds that the command
line does not have, so it is put in place when TensorFlow's own module of gradients is imported, or at once if that has
happened.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

GRADIENTS = "tensorflow.python.ops.gradients_util"


def install() -> None:
    """Records gradients from now on, or from the import of TensorFlow on. May be called more than once."""
    if GRADIENTS in sys.modules:
        importlib.import_module("parallax_runner.graph.gradients_hook")
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds one module as everybody else does, and sees to it that it is changed once it is there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != GRADIENTS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        gradients_util: Any = module
        original = gradients_util._GradientsHelper

        # TensorFlow is being imported: what needs all of it waits for the first call.
        @functools.wraps(original)
        def first_call(*args: Any, **kwargs: Any) -> Any:
            importlib.import_module("parallax_runner.graph.gradients_hook").install()
            return gradients_util._GradientsHelper(*args, **kwargs)

        # gradients_hook takes a function that has `__wrapped__` for its own, and wraps what stands behind this one.
        del first_call.__wrapped__
        first_call.unhooked = original  # type: ignore[attr-defined]
        gradients_util._GradientsHelper = first_call
