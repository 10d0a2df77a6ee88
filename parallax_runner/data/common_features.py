"""The features that training and validation data have in common."""

from __future__ import annotations

from collections.abc import Mapping

from parallax_runner.data.dataset import Dataset, Feature
from parallax_runner.errors import DataError


def common_features(train: Mapping[str, Feature], validation: Mapping[str, Feature]) -> dict[str, Feature]:
    """Returns the features of both. A size is None if one of them does not know it. `validation` must have a feature of
    each name in `train`.

    Raises DataError if a feature differs in its kind, its number of dimensions or its sizes. Dtypes may differ, because
    feeding converts them.
    """
    return {name: _common(name, feature, validation[name]) for name, feature in train.items()}


def validation_features_of(dataset: Dataset) -> Mapping[str, Feature]:
    """Returns the features of a dataset's validation batches, which can have sizes that training batches do not have,
    such as the length of padded sentences."""
    found: Mapping[str, Feature] = getattr(dataset, "validation_features", dataset.features)
    return found


def _common(name: str, train: Feature, validation: Feature) -> Feature:
    kinds = [(one.kind, one.ragged_rank, len(one.shape)) for one in (train, validation)]
    pairs = list(zip(train.shape, validation.shape, strict=False))
    sizes_agree = all(one is None or other is None or one == other for one, other in pairs)
    if kinds[0] != kinds[1] or not sizes_agree:
        raise DataError(
            f"validation_data: «{name}» is {_described(validation)}, expected {_described(train)} as in the training "
            "data"
        )
    shape = tuple(None if other is None else one for one, other in pairs)
    return Feature(shape, train.dtype, train.kind, train.ragged_rank)


def _described(feature: Feature) -> str:
    kind = "" if feature.kind == "dense" else f" ({feature.kind})"
    return f"{feature.dtype} {list(feature.shape)}{kind}"
