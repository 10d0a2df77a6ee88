"""Data whose batches take more and more memory; imported by the runs of test_memory_ran_out.py."""

from __future__ import annotations

import numpy as np

from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.data.dataset import Dataset

LEAK_BYTES = 8 << 20


class Leaking(ArrayDataset):
    """Keeps memory of `LEAK_BYTES` for each batch that it reads."""

    def train_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Returns a batch."""
        leaked.append(np.ones(LEAK_BYTES, np.uint8))
        return super().train_batch(start, size)


leaked: list[np.ndarray] = []


def load(*, seed: int) -> Dataset:
    """Returns points of a line, with the features `x` and `y`."""
    x = np.linspace(0.0, 1.0, 1000, dtype=np.float32)
    points = {"x": x, "y": 2 * x}
    return Leaking(train=points, validation=points, words_per_example=None, seed=seed)
