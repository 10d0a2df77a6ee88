"""The global random generators of Python and NumPy, which draw the same numbers in every process while the graph is
built.

For a configured model, the generators are seeded during the build. For a script, the process that the user started only
records the generators' states, right after TensorFlow and this package are imported. A worker restores these states at
the same place in the script. After the build, the worker restores its own states, because otherwise all workers would
continue to draw the same numbers. A generator that the script itself has seeded keeps its state.
"""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from parallax_runner.files.regular import read_regular
from parallax_runner.files.whole import write_whole

FILE_NAME = "generators.json"
PYTHON, NUMPY = "random", "numpy.random"
# The functions of each module that set the state of its generator.
_SETTERS = {PYTHON: ("seed", "setstate"), NUMPY: ("seed", "set_state")}
# The original functions are stored here, because `Borrowed` replaces them in their modules to detect the script's
# calls.
_set_python, _set_numpy = random.setstate, np.random.set_state

States = dict[str, Any]


def states() -> States:
    """Returns the states of both generators as JSON values. NumPy's state is omitted if its generator is not a Mersenne
    Twister."""
    found: States = {PYTHON: _python_state()}
    legacy = np.random.get_state()
    if isinstance(legacy, tuple):
        kind, key, *rest = legacy
        found[NUMPY] = [kind, key.tolist(), *rest]
    return found


def restore(saved: States) -> None:
    """Restores the generators that have a state in `saved`."""
    if PYTHON in saved:
        version, words, gauss = saved[PYTHON]
        _set_python((version, tuple(words), gauss))
    if NUMPY in saved:
        _set_numpy(tuple(saved[NUMPY]))


def seed_generators(seed: int) -> None:
    """Seeds both generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seeds both generators for the `with` block, and restores their states afterwards."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    seed_generators(seed)
    try:
        yield
    finally:
        _set_python(of_python)
        _set_numpy(of_numpy)


class Begin:
    """The generators' states right after TensorFlow and this package have been imported."""

    def __init__(self) -> None:
        self._states: States | None = None
        self._given: States | None = None

    def note(self) -> None:
        """Records the current states. In a worker, first restores the states that another process recorded."""
        # TensorFlow imports rich.style, whose import draws a random number. Importing it here makes that draw happen
        # before the states are recorded.
        importlib.import_module("rich.style")
        if self._given is not None:
            restore(self._given)
        self._states = states()

    def take_over(self, given: States) -> None:
        """Makes this process start with the states of another process.

        If this process has already recorded its states, restores the given states immediately.
        """
        self._given = given
        if self._states is not None:
            self.note()

    def is_untouched(self) -> bool:
        """Returns whether Python's generator has been neither seeded nor drawn from since its state was recorded."""
        return self._states is not None and _python_state() == self._states[PYTHON]

    def save(self, path: Path) -> None:
        """Writes the states for the workers."""
        write_whole(path, json.dumps(self._states or states()))


begin = Begin()


class Borrowed:
    """Makes a worker use the generator states in the file `path` until `give_back` is called."""

    def __init__(self, path: Path) -> None:
        self._own, self._seeded = states(), set[str]()
        self._replaced: list[tuple[str, str, Callable[..., Any]]] = []
        begin.take_over(json.loads(read_regular(path)))
        for module, names in _SETTERS.items():
            for name in names:
                self._note_calls(module, name)

    def give_back(self) -> None:
        """Restores the worker's own states, except for generators that the script has seeded."""
        for module, name, original in self._replaced:
            setattr(importlib.import_module(module), name, original)
        restore({name: state for name, state in self._own.items() if name not in self._seeded})

    def _note_calls(self, module: str, name: str) -> None:
        original = getattr(importlib.import_module(module), name)

        def noting(*args: Any, **kwargs: Any) -> Any:
            self._seeded.add(module)
            return original(*args, **kwargs)

        setattr(importlib.import_module(module), name, noting)
        self._replaced.append((module, name, original))


def _python_state() -> list[Any]:
    version, words, gauss = random.getstate()
    return [version, list(words), gauss]
