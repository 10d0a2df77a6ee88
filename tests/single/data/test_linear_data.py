"""`data=linear`: points near a line."""

import numpy as np
import pytest

from parallax_runner.data import linear
from parallax_runner.data.dataset import Feature
from parallax_runner.errors import ConfigError, DataError

SIZES = {"examples": 500, "validation_examples": 100, "noise": 0.1, "seed": 1}


def test_points_lie_near_the_line():
    dataset = linear.load(**SIZES)
    assert dataset.features == {"x": Feature((), "float32"), "y": Feature((), "float32")}
    assert dataset.words_per_example is None
    train, validation = dataset.train_batch(0, 500), dataset.validation_batch(0, 100)
    for points in (train, validation):
        assert points["x"].dtype == points["y"].dtype == np.float32
        assert 0.05 < np.std(points["y"] - (10 * points["x"] - 5)) < 0.15
    assert not set(train["x"].tolist()) & set(validation["x"].tolist())


def test_seed_decides_the_points():
    first, again, other = (linear.load(**SIZES | {"seed": seed}).train_batch(0, 5)["x"].tolist() for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("wrong", "error"),
    [({"examples": 0}, DataError), ({"validation_examples": -1}, ConfigError), ({"noise": -0.1}, ConfigError)],
)
def test_values_out_of_range_are_refused(wrong, error):
    (key,) = wrong
    with pytest.raises(error, match=f"data.{key}="):
        linear.load(**SIZES | wrong)
