"""`data=zipf`: few words often, most of them hardly ever."""

import numpy as np
import pytest

from parallax_runner.data import zipf
from parallax_runner.data.dataset import Feature
from parallax_runner.errors import ConfigError

SIZES = {
    "vocab_size": 50,
    "offset": 2.7,
    "sequence_length": 10,
    "examples": 4000,
    "validation_examples": 100,
    "seed": 1,
}


def test_windows_of_words():
    dataset = zipf.load(**SIZES)
    assert dataset.features == {"words": Feature((10,), "int32"), "next_words": Feature((10,), "int32")}
    assert (dataset.train_size, dataset.validation_size, dataset.words_per_example) == (4000, 100, 10)
    batch = dataset.train_batch(0, 4000)
    assert (batch["words"][:, 1:] == batch["next_words"][:, :-1]).all()


def test_frequencies_are_those_of_the_law():
    words = zipf.load(**SIZES).train_batch(0, 4000)["words"].ravel()
    found = np.bincount(words, minlength=50) / len(words)
    expected = 1 / (np.arange(50) + 1 + 2.7)
    np.testing.assert_allclose(found, expected / expected.sum(), atol=4e-3)


def test_the_words_are_always_the_same():
    """They are drawn anew in each process, and the same in all: so these must not change."""
    assert zipf.draw_words(8, 200_000, 2.7, np.random.SeedSequence(1)).tolist() == [
        910,
        115755,
        12,
        113459,
        97,
        340,
        29851,
        291,
    ]
    first, again, other = (
        zipf.load(**SIZES | {"seed": seed}).train_batch(0, 2)["words"].tolist() for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.parametrize(
    "wrong", [{"vocab_size": 0}, {"offset": -1.0}, {"examples": 0}, {"validation_examples": -1}, {"sequence_length": 0}]
)
def test_values_out_of_range_are_refused(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=f"data.{key}="):
        zipf.load(**SIZES | wrong)
