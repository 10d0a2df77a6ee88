"""Synthetic ad clicks, generated from a seed, with dense and categorical features in the layout of the Criteo
dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parallax_runner.data.dataset import Dataset
from parallax_runner.data.draws import columns, keys, log_uniform, uniform
from parallax_runner.data.generated import GeneratedDataset, check_sizes
from parallax_runner.errors import ConfigError, Setting

FACTORS = 4  # latent factors of each id; two ids in an example interact through the dot product of their factors
MEAN_LOGIT = -1.2  # about a quarter of the examples are clicks
ID_EFFECT = 0.5  # each id contributes between -0.5 and 0.5 to the logit
FACTOR_RANGE = 0.3  # each factor is between -0.3 and 0.3
LARGEST_CARDINALITY = 2**48  # well below the 53 bits of a random number


def load(
    *, dense_features: int, cardinalities: Sequence[int], examples: int, validation_examples: int, seed: int
) -> Dataset:
    """Returns examples with the features `dense` (float32 [dense_features]), `categorical` (int64 [len(cardinalities)])
    and `label` (float32, 0 or 1).

    Dense features are exponentially distributed with mean 1, roughly like the logarithms of counts. Ids of categorical
    feature f are below `cardinalities[f]` and follow Zipf's law; smaller ids are more frequent. The logit of the label
    is linear in the dense features, with an additional term for each id and each pair of ids. Raises ConfigError if an
    argument is out of range.
    """
    if dense_features < 1:
        raise ConfigError("expected 1 or more.").about(Setting.of("data.dense_features", dense_features))
    for number, cardinality in enumerate(cardinalities):
        if not 1 <= cardinality <= LARGEST_CARDINALITY:
            raise ConfigError("expected 1 to 2^48 ids.").about(
                Setting.of("data.cardinalities", cardinality, item=number)
            )
    if not cardinalities:
        raise ConfigError("expected at least one categorical feature.").about(Setting("data.cardinalities", "[]"))
    check_sizes(examples, validation_examples)
    return GeneratedDataset(
        _Clicks.of(dense_features, cardinalities, seed).batch,
        train_size=examples,
        validation_size=validation_examples,
        seed=seed,
    )


@dataclass(frozen=True)
class _Clicks:
    weights: np.ndarray  # float64 [dense_features]
    cardinalities: np.ndarray  # int64 [categorical features]
    dense_key: np.uint64
    id_key: np.uint64
    factor_key: np.uint64
    label_key: np.uint64

    @classmethod
    def of(cls, dense_features: int, cardinalities: Sequence[int], seed: int) -> _Clicks:
        weight_key, *others = keys(seed, count=5)
        weights = uniform(weight_key, np.arange(dense_features)) - 0.5
        return cls(weights, np.array(cardinalities, dtype=np.int64), *others)

    def batch(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the examples with these indices."""
        dense = -np.log1p(-uniform(self.dense_key, columns(numbers, len(self.weights))))
        ids = log_uniform(uniform(self.id_key, columns(numbers, len(self.cardinalities))), self.cardinalities)
        logits = MEAN_LOGIT + (dense - 1) @ self.weights + self._effect_of_ids(ids)
        clicked = uniform(self.label_key, numbers) < 1 / (1 + np.exp(-logits))
        return {"dense": dense.astype(np.float32), "categorical": ids, "label": clicked.astype(np.float32)}

    def _effect_of_ids(self, ids: np.ndarray) -> np.ndarray:
        """Returns the contribution of the ids to each example's logit. The contribution is computed from the ids
        themselves, because a table with an entry for each id would be too large."""
        first = np.cumsum(self.cardinalities) - self.cardinalities
        draws = 2 * uniform(self.factor_key, columns(first + ids, 1 + FACTORS)) - 1
        own = ID_EFFECT * draws[..., 0].sum(axis=1)
        factors = FACTOR_RANGE * draws[..., 1:]
        # This is the sum of the dot products of all pairs, computed as in factorization machines.
        pairs = (factors.sum(axis=1) ** 2 - (factors**2).sum(axis=1)).sum(axis=1) / 2
        effect: np.ndarray = own + pairs
        return effect
