"""The global generators of Python and NumPy: all processes draw the same while they build the graph.

For a configured model they are seeded meanwhile. In a script, the process that a person has started notes the states
once TensorFlow and this package are there, and changes nothing. A worker takes over these states at the same place of
the script. When the graph is built it gets its own states back, so that workers do not go on with equal draws, unless
the script has seeded a generator by itself.
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

from parallax_runner.files.whole import write_whole

FILE_NAME = "generators.json"
PYTHON, NUMPY = "random", "numpy.random"
# By module, the functions that set the state of its generator.
_SETTERS = {PYTHON: ("seed", "setstate"), NUMPY: ("seed", "set_state")}
# Not looked up when they are called: `Borrowed` replaces them to see what the script calls.
_set_python, _set_numpy = random.setstate, np.random.set_state

States = dict[str, Any]


def states() -> States:
    """The states of both generators, as JSON holds them; without NumPy's where it is of another kind."""
    found: States = {PYTHON: _python_state()}
    legacy = np.random.get_state()
    if isinstance(legacy, tuple):
        kind, key, *rest = legacy
        found[NUMPY] = [kind, key.tolist(), *rest]
    return found


def restore(saved: States) -> None:
    """Sets the generators that `saved` has a state of."""
    if PYTHON in saved:
        version, words, gauss = saved[PYTHON]
        _set_python((version, tuple(words), gauss))
    if NUMPY in saved:
        _set_numpy(tuple(saved[NUMPY]))


def seed_generators(seed: int) -> None:
    """Starts both anew."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Both start anew for the block; afterwards they go on as if it had drawn nothing."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    seed_generators(seed)
    try:
        yield
    finally:
        _set_python(of_python)
        _set_numpy(of_numpy)


class Begin:
    """The states that this process had when TensorFlow and this package were there."""

    def __init__(self) -> None:
        self._states: States | None = None
        self._given: States | None = None

    def note(self) -> None:
        """Called at that moment: notes the states, or takes over those of the script's first process."""
        # TensorFlow imports it, and it draws a number when it is imported.
        importlib.import_module("rich.style")
        if self._given is not None:
            restore(self._given)
        self._states = states()

    def take_over(self, given: States) -> None:
        """Lets this process begin with the states of another one, at once if the moment has passed."""
        self._given = given
        if self._states is not None:
            self.note()

    def is_untouched(self) -> bool:
        """Whether nobody has seeded Python's generator, or drawn from it, since then."""
        return self._states is not None and _python_state() == self._states[PYTHON]

    def save(self, path: Path) -> None:
        """Leaves the states for the workers."""
        write_whole(path, json.dumps(self._states or states()))


begin = Begin()


class Borrowed:
    """The first process's states in a worker that runs its script, until `give_back`."""

    def __init__(self, path: Path) -> None:
        self._own, self._seeded = states(), set[str]()
        self._replaced: list[tuple[str, str, Callable[..., Any]]] = []
        begin.take_over(json.loads(path.read_text(encoding="utf-8")))
        for module, names in _SETTERS.items():
            for name in names:
                self._note_calls(module, name)

    def give_back(self) -> None:
        """The worker's own states, but for generators that the script has seeded."""
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
