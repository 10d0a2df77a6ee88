"""`data=pairs`: a query and an item of its cluster, and the item's probability."""

import numpy as np
import pytest

from parallax_runner.data import pairs
from parallax_runner.data.dataset import Feature
from parallax_runner.errors import ConfigError

SIZES = {
    **{"queries": 50, "items": 40, "clusters": 4, "affinity": 0.8},
    **{"examples": 100_000, "validation_examples": 50, "seed": 1},
}


def test_features_and_ranges():
    dataset = pairs.load(**SIZES)
    assert dataset.features == {
        "query": Feature((), "int64"),
        "item": Feature((), "int64"),
        "item_probability": Feature((), "float32"),
    }
    assert (dataset.train_size, dataset.validation_size) == (100_000, 50)
    batch = dataset.train_batch(0, 100_000)
    assert (batch["query"].min(), batch["query"].max()) == (0, 49)
    assert (batch["item"].min(), batch["item"].max()) == (0, 39)


@pytest.mark.parametrize("affinity", [0.0, 0.8, 1.0])
def test_item_probability_is_the_frequency(affinity):
    batch = pairs.load(**SIZES | {"affinity": affinity}).train_batch(0, 100_000)
    found = np.bincount(batch["item"], minlength=40) / 100_000
    np.testing.assert_allclose(found[batch["item"]], batch["item_probability"], atol=6e-3)
    assert np.unique(np.stack([batch["item"], batch["item_probability"]]), axis=1).shape[1] == len(set(batch["item"]))


def test_queries_follow_zipfs_law():
    query = pairs.load(**SIZES).train_batch(0, 100_000)["query"]
    ranks = np.arange(50)
    found = np.bincount(query, minlength=50) / len(query)
    np.testing.assert_allclose(found, np.log((ranks + 2) / (ranks + 1)) / np.log(51), atol=5e-3)


def test_a_query_has_items_of_one_cluster_in_the_share_that_is_asked_for():
    batch = pairs.load(**SIZES).train_batch(0, 100_000)
    shares = [
        np.bincount(batch["item"][batch["query"] == query] % 4, minlength=4) / (batch["query"] == query).sum()
        for query in range(5)
    ]
    for share in shares:  # others are of any cluster, this one included
        assert 0.8 < share.max() < 0.95


def test_a_pair_depends_on_its_number_alone():
    dataset = pairs.load(**SIZES)
    whole = dataset.train_batch(10, 20)
    assert (pairs.load(**SIZES).train_batch(20, 5)["item"] == whole["item"][10:15]).all()
    assert (pairs.load(**SIZES | {"seed": 2}).train_batch(10, 20)["query"] != whole["query"]).any()
    assert whole["query"].tolist()[:6] == [19, 28, 13, 26, 10, 8]
    assert whole["item"].tolist()[:6] == [1, 15, 2, 3, 1, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"queries": 0}, {"items": 0}, {"clusters": 0}, {"items": 41}, {"affinity": 1.1}),
        *({"examples": 0}, {"validation_examples": -1}),
    ],
)
def test_values_out_of_range_are_refused(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"data\.{key}="):
        pairs.load(**SIZES | wrong)
