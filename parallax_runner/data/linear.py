"""Points near the line y = 10 x - 5: a minimal dataset to learn from."""

from __future__ import annotations

import numpy as np

from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.data.dataset import Dataset
from parallax_runner.data.memory import check_fits
from parallax_runner.errors import ConfigError, DataError, Setting

SLOPE = 10.0
INTERCEPT = -5.0


def load(*, examples: int, validation_examples: int, noise: float, seed: int) -> Dataset:
    """Returns points with the features `x` and `y`, both float32 scalars. x is uniform in [-1, 1).

    `noise` is the standard deviation of the noise added to y. Raises DataError if there are no examples, and
    ConfigError if `validation_examples` or `noise` is negative.
    """
    if examples < 1:
        raise DataError("expected at least 1 example to train on.").about(Setting.of("data.examples", examples))
    if validation_examples < 0:
        raise ConfigError("expected 0 (no validation) or more.").about(
            Setting.of("data.validation_examples", validation_examples)
        )
    if noise < 0:
        raise ConfigError("expected a standard deviation, 0 or more.").about(Setting.of("data.noise", noise))
    # Memory is needed for intermediate float64 values of x and y, and for the order of an epoch.
    check_fits(4 * 8 * (examples + validation_examples), examples=examples, validation_examples=validation_examples)
    train_generator, validation_generator = np.random.default_rng(seed).spawn(2)
    return ArrayDataset(
        train=_points(examples, noise, train_generator),
        validation=_points(validation_examples, noise, validation_generator),
        words_per_example=None,
        seed=seed,
    )


def _points(count: int, noise: float, generator: np.random.Generator) -> dict[str, np.ndarray]:
    x = generator.uniform(-1.0, 1.0, count)
    y = SLOPE * x + INTERCEPT + noise * generator.standard_normal(count)
    return {"x": x.astype(np.float32), "y": y.astype(np.float32)}
