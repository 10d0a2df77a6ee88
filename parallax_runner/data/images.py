"""Small synthetic images for benchmarks and trials, generated from a seed. Each image is the pattern of its class plus
noise."""

from __future__ import annotations

import numpy as np

from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.data.dataset import Dataset
from parallax_runner.data.memory import check_fits
from parallax_runner.errors import ConfigError, Setting

CHANNELS = 3


def load(*, image_size: int, classes: int, noise: float, examples: int, validation_examples: int, seed: int) -> Dataset:
    """Returns examples with the features `image` (float32 [image_size, image_size, 3]) and `label` (int32, below
    `classes`).

    `noise` is the standard deviation of the noise added to each pixel; the patterns have standard deviation 1. Raises
    ConfigError if an argument is out of range.
    """
    for name, number, least in (
        ("image_size", image_size, 1),
        ("classes", classes, 2),
        ("examples", examples, 1),
        ("validation_examples", validation_examples, 0),
        ("noise", noise, 0),
    ):
        if number < least:
            raise ConfigError(f"expected {least} or more.").about(Setting.of(f"data.{name}", number))
    check_fits(
        4 * CHANNELS * image_size**2 * (examples + validation_examples + classes),
        image_size=image_size,
        classes=classes,
        examples=examples,
        validation_examples=validation_examples,
    )
    of_patterns, of_train, of_validation = np.random.default_rng(seed).spawn(3)
    patterns = of_patterns.standard_normal([classes, image_size, image_size, CHANNELS], dtype=np.float32)
    return ArrayDataset(
        train=_images(patterns, noise, examples, of_train),
        validation=_images(patterns, noise, validation_examples, of_validation),
        words_per_example=None,
        seed=seed,
    )


def _images(patterns: np.ndarray, noise: float, count: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    labels = generator.integers(0, len(patterns), count, dtype=np.int32)
    images = generator.standard_normal([count, *patterns.shape[1:]], dtype=np.float32)
    images *= np.float32(noise)
    images += patterns[labels]
    return {"image": images, "label": labels}
