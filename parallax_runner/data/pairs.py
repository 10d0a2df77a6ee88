"""Synthetic training data for a retrieval model, generated from a seed. Each example is a query and the item that was
chosen for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parallax_runner.data.dataset import Dataset
from parallax_runner.data.draws import keys, log_uniform, log_uniform_probabilities, uniform
from parallax_runner.data.generated import GeneratedDataset, check_sizes
from parallax_runner.data.memory import check_fits
from parallax_runner.errors import ConfigError, Setting


def load(
    *,
    queries: int,
    items: int,
    clusters: int,
    affinity: float,
    examples: int,
    validation_examples: int,
    seed: int,
) -> Dataset:
    """Returns pairs with the features `query` and `item` (int64) and `item_probability` (float32), the probability of
    the item over all pairs. A loss with in-batch negatives uses this probability to correct its sampling bias.

    Queries and items follow Zipf's law; smaller ids are more frequent. Each query belongs to one of `clusters`
    clusters, and item i belongs to cluster i % clusters. In a fraction `affinity` of the pairs, the item is from the
    query's cluster; in the other pairs, it can be any item. Raises ConfigError if an argument is out of range.
    """
    for name, number in (("queries", queries), ("items", items), ("clusters", clusters)):
        if number < 1:
            raise ConfigError("expected 1 or more.").about(Setting.of(f"data.{name}", number))
    if items % clusters:
        raise ConfigError(f"expected a multiple of data.clusters={clusters}.").about(Setting.of("data.items", items))
    if not 0 <= affinity <= 1:
        raise ConfigError("expected a fraction from 0 to 1.").about(Setting.of("data.affinity", affinity))
    check_sizes(examples, validation_examples)
    check_fits(4 * 8 * (queries + items), queries=queries, items=items)
    return GeneratedDataset(
        _Pairs.of(queries, items, clusters, affinity, seed).batch,
        train_size=examples,
        validation_size=validation_examples,
        seed=seed,
    )


@dataclass(frozen=True)
class _Pairs:
    cluster_of: np.ndarray  # int64 [queries]
    probability_of: np.ndarray  # float32 [items]
    clusters: int
    affinity: float
    query_key: np.uint64
    item_key: np.uint64
    choice_key: np.uint64

    @classmethod
    def of(cls, queries: int, items: int, clusters: int, affinity: float, seed: int) -> _Pairs:
        cluster_key, *others = keys(seed, count=4)
        cluster_of = (uniform(cluster_key, np.arange(queries)) * clusters).astype(np.int64)
        of_clusters = np.bincount(cluster_of, log_uniform_probabilities(queries), clusters)
        by_any = log_uniform_probabilities(items).reshape(-1, clusters)
        by_affinity = by_any.sum(axis=1, keepdims=True) * of_clusters
        probability_of = (1 - affinity) * by_any + affinity * by_affinity
        return cls(cluster_of, probability_of.ravel().astype(np.float32), clusters, affinity, *others)

    def batch(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the pairs with these indices."""
        query = log_uniform(uniform(self.query_key, numbers), len(self.cluster_of))
        anyone = log_uniform(uniform(self.item_key, numbers), len(self.probability_of))
        # The item is replaced within its block of `clusters` items. Each block has one item from each cluster, and the
        # items of a block are about equally frequent.
        alike = anyone - anyone % self.clusters + self.cluster_of[query]
        item = np.where(uniform(self.choice_key, numbers) < self.affinity, alike, anyone)
        return {"query": query, "item": item, "item_probability": self.probability_of[item]}
