"""What the package says about a model's loss before the first step."""

from __future__ import annotations

from types import ModuleType

from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from tests.fuzz.random_model import RandomModel


def notes_on(module: ModuleType, model: RandomModel, single: SingleDeviceGraph) -> list[str]:
    """Returns the notes that a user gets before the first step. Only one rank calls this."""
    return list(single.notes)
