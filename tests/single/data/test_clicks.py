"""`data=clicks`: Criteo's layout, ids by Zipf's law, a label that its features explain."""

import numpy as np
import pytest
import yaml

from parallax_runner.config.location import conf_dir
from parallax_runner.data import clicks
from parallax_runner.data.dataset import Feature
from parallax_runner.errors import ConfigError

SIZES = {"dense_features": 3, "cardinalities": [5, 1000], "examples": 20_000, "validation_examples": 50, "seed": 1}
CRITEO_KAGGLE = [
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
]


def test_features_and_ranges():
    dataset = clicks.load(**SIZES)
    assert dataset.features == {
        "dense": Feature((3,), "float32"),
        "categorical": Feature((2,), "int64"),
        "label": Feature((), "float32"),
    }
    assert (dataset.train_size, dataset.validation_size, dataset.words_per_example) == (20_000, 50, None)
    batch = dataset.train_batch(0, 20_000)
    assert {name: array.dtype.name for name, array in batch.items()} == {
        name: feature.dtype for name, feature in dataset.features.items()
    }
    assert batch["dense"].min() >= 0 and batch["dense"].mean() == pytest.approx(1, abs=0.02)
    assert batch["categorical"].min() == 0 and (batch["categorical"].max(axis=0) == [4, 999]).all()
    assert set(batch["label"]) == {0, 1} and 0.1 < batch["label"].mean() < 0.5


def test_ids_follow_zipfs_law_and_features_are_independent():
    ids = clicks.load(**SIZES).train_batch(0, 20_000)["categorical"]
    for column, size in enumerate(SIZES["cardinalities"]):
        found = np.bincount(ids[:, column], minlength=size) / len(ids)
        ranks = np.arange(size)
        np.testing.assert_allclose(found, np.log((ranks + 2) / (ranks + 1)) / np.log(size + 1), atol=0.01)
    assert abs(np.corrcoef(ids[:, 0], np.log1p(ids[:, 1]))[0, 1]) < 0.03


def test_an_example_depends_on_its_number_alone():
    dataset, again = clicks.load(**SIZES), clicks.load(**SIZES)
    whole = dataset.train_batch(100, 60)
    parts = [again.train_batch(start, 20) for start in (140, 120, 100)][::-1]
    for name, array in whole.items():
        assert (np.concatenate([part[name] for part in parts]) == array).all()
    other = clicks.load(**SIZES | {"seed": 2}).train_batch(100, 60)
    assert (other["dense"] != whole["dense"]).mean() > 0.9


def test_an_epoch_has_each_example_once_and_validation_others():
    dataset = clicks.load(**SIZES | {"examples": 40})
    first, second = (dataset.train_batch(start, 40)["dense"][:, 0] for start in (0, 40))
    assert sorted(first) == sorted(second) and len(set(first)) == 40 and (first != second).any()
    validation = dataset.validation_batch(0, 50)
    assert not set(validation["dense"][:, 0]) & set(first)
    assert (dataset.validation_batch(10, 5)["categorical"] == validation["categorical"][10:15]).all()
    for start, size in ((-1, 2), (49, 2)):
        with pytest.raises(IndexError):
            dataset.validation_batch(start, size)


def test_ids_and_dense_features_explain_the_label():
    """The mean label of an id in one half of the examples predicts that in the other half."""
    batch = clicks.load(**SIZES).train_batch(0, 20_000)
    halves = [slice(0, 10_000), slice(10_000, 20_000)]
    rates = [[batch["label"][half][batch["categorical"][half, 0] == id_].mean() for id_ in range(5)] for half in halves]
    assert np.ptp(rates[0]) > 0.1
    np.testing.assert_allclose(*rates, atol=0.05)
    correlations = [np.corrcoef(batch["dense"][:, column], batch["label"])[0, 1] for column in range(3)]
    assert max(map(abs, correlations)) > 0.05  # 0.007 is noise


def test_the_examples_are_always_the_same():
    """Each process draws its own, and all must draw the same: so these must not change."""
    batch = clicks.load(**SIZES).train_batch(0, 4)
    assert batch["categorical"].tolist() == [[1, 10], [0, 525], [0, 27], [0, 231]]
    assert batch["label"].tolist() == [0, 0, 0, 0]
    np.testing.assert_allclose(batch["dense"][0], [0.9982277, 0.04458242, 0.01897707], rtol=1e-6)


def test_criteos_cardinalities_are_scaled():
    configured = yaml.safe_load((conf_dir() / "data" / "clicks.yaml").read_text(encoding="utf-8"))
    assert configured["cardinalities"] == [min(number, max(100, round(number / 100))) for number in CRITEO_KAGGLE]
    assert configured["dense_features"] == 13


def test_published_cardinalities_need_no_memory_for_tables():
    sizes = {"dense_features": 13, "cardinalities": CRITEO_KAGGLE}
    ids = clicks.load(**SIZES | sizes).train_batch(0, 1000)["categorical"]
    assert (ids < CRITEO_KAGGLE).all() and ids.max() > 1_000_000


@pytest.mark.parametrize(
    "wrong",
    [
        *({"dense_features": 0}, {"cardinalities": []}, {"cardinalities": [3, 0]}, {"cardinalities": [2**49]}),
        *({"examples": 0}, {"validation_examples": -1}),
    ],
)
def test_values_out_of_range_are_refused(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"data\.{key}(\[\d\])?="):
        clicks.load(**SIZES | wrong)
