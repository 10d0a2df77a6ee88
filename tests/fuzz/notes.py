"""What the package says about a model's loss before the first step."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced.loss_notes import notes_on_losses
from tests.fuzz.batches import BATCH, of_all_ranks
from tests.fuzz.random_model import RandomModel


def notes_on(module: ModuleType, model: RandomModel, single: SingleDeviceGraph) -> list[str]:
    """Returns the notes that a user gets before the first step. Only one rank calls this."""
    if single.loss_trial is None or model.ranks < 2:
        return list(single.notes)

    def read(size: int) -> dict[str, np.ndarray]:
        examples = of_all_ranks(module.FEATURES, model.seed, 0, ranks=-(-size // BATCH))
        return {name: array[:size] for name, array in examples.items()}

    step_examples = model.ranks * BATCH
    found = notes_on_losses(single.loss_trial, read, replicas=model.ranks, step_examples=step_examples)
    return [*single.notes, *found.notes]
