"""Finds the classes that a configuration names: this project's own, and those of other packages. Imports them late."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any


@dataclass(frozen=True)
class ExtensionPoint:
    """A kind of class that other packages may bring: subclasses of `base` (dotted, since it belongs to a later stage).

    A name is one of `own`, an entry point of `group` in an installed package, or the dotted name of a class.
    """

    group: str
    base: str
    own: Mapping[str, str]

    def names(self) -> list[str]:
        """All names that are no dotted ones."""
        return sorted({*self.own, *(one.name for one in entry_points(group=self.group))})

    def find(self, name: str) -> type:
        """The class of that name. Raises LookupError, whose text says what is wrong with it."""
        dotted = self.own.get(name) or self._dotted_of_entry_point(name) or name
        if "." not in dotted:
            raise LookupError(
                f"no such name, expected one of {', '.join(self.names())} or a class as package.module.Class"
            )
        found = _imported(dotted)
        if not (isinstance(found, type) and issubclass(found, _imported(self.base))):
            raise LookupError(f"{dotted} is no subclass of {self.base}")
        return found

    def _dotted_of_entry_point(self, name: str) -> str | None:
        return next((one.value.replace(":", ".") for one in entry_points(group=self.group, name=name)), None)


def _imported(dotted: str) -> Any:
    module, _, name = dotted.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever a module does when it is imported
        raise LookupError(f"{dotted} cannot be imported: {type(error).__name__}: {error}") from error


TRACKERS = ExtensionPoint(
    group="parallax_runner.trackers",
    base="parallax_runner.track.tracker.Tracker",
    own={"mlflow": "parallax_runner.track.mlflow.tracker.MlflowTracker"},
)
