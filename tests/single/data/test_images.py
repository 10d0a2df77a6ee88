"""`data=images`: the pattern of a class, under noise."""

import numpy as np
import pytest

from parallax_runner.data import images
from parallax_runner.data.dataset import Feature
from parallax_runner.errors import ConfigError

SIZES = {"image_size": 8, "classes": 4, "noise": 0.5, "examples": 300, "validation_examples": 20, "seed": 1}


def test_images_are_near_the_pattern_of_their_class():
    dataset = images.load(**SIZES)
    assert dataset.features == {"image": Feature((8, 8, 3), "float32"), "label": Feature((), "int32")}
    assert (dataset.train_size, dataset.validation_size, dataset.words_per_example) == (300, 20, None)
    batch, held_out = dataset.train_batch(0, 300), dataset.validation_batch(0, 20)
    assert set(batch["label"]) == {0, 1, 2, 3}
    means = np.stack([batch["image"][batch["label"] == label].mean(axis=0) for label in range(4)])
    apart = ((held_out["image"][:, None] - means) ** 2).mean(axis=(2, 3, 4))
    assert (apart.argmin(axis=1) == held_out["label"]).all()
    assert apart.min(axis=1) == pytest.approx(0.25, rel=0.3)  # the noise alone


def test_seed_decides_the_images():
    first, again, other = (images.load(**SIZES | {"seed": seed}).train_batch(0, 2)["image"] for seed in (1, 1, 2))
    assert (first == again).all() and not (first == other).any()


@pytest.mark.parametrize("wrong", [{"classes": 1}, {"image_size": 0}, {"noise": -0.1}, {"validation_examples": -1}])
def test_values_out_of_range_are_refused(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=f"data.{key}="):
        images.load(**SIZES | wrong)
