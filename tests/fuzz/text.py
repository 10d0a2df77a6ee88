"""The source text of a model while it is written."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

Chosen = TypeVar("Chosen")
# Ids are below this number, so they repeat in a batch.
ROWS, WIDTH, LENGTH = 7, 3, 4
ID_DTYPES = ("int32", "int64")


class Draw(random.Random):
    """A generator that is seeded with text, and therefore the same on every machine."""

    def chance(self, share: float) -> bool:
        """Returns True with this probability."""
        return self.random() < share

    def one(self, options: Sequence[Chosen]) -> Chosen:
        """Returns one of the options."""
        return options[int(self.random() * len(options))]

    def some(self, options: Sequence[Chosen], count: int) -> list[Chosen]:
        """Returns `count` different options in their order."""
        chosen = sorted(range(len(options)), key=lambda _: self.random())[:count]
        return [options[number] for number in sorted(chosen)]


@dataclass
class Text:
    """Parts of a module. `features` maps a name to the shape of an example and a dtype.

    `above` are definitions before the function that makes the model, and `body` are the lines of that function.
    `width` is the last dimension of the value that the layers so far have computed. `is_sparse` means that the
    gradients of tables must be sparse.
    """

    draw: Draw
    labels: list[str] = field(default_factory=list)
    features: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)
    above: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    width: int | None = None
    is_sparse: bool = False
    _seeds: int = 0

    def seed(self) -> int:
        """Returns a seed for the next initial value."""
        self._seeds += 1
        return self._seeds

    def label(self, *names: str) -> None:
        """Notes what the model contains."""
        self.labels += [name for name in names if name not in self.labels]

    def add(self, *lines: str) -> None:
        """Appends lines to the function's body, which is indented later."""
        self.body += lines

    def define(self, definition: str) -> None:
        """Adds a definition once."""
        if definition not in self.above:
            self.above.append(definition)

    def feature(self, name: str, shape: tuple[int, ...] = (), dtype: str = "float64") -> str:
        """Adds a feature, and returns its name."""
        self.features[name] = (shape, dtype)
        return name
