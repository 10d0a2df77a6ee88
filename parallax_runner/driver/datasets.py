"""The facts about a run's data that a tracker records."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from parallax_runner.config.frozen import FIT, SCRIPT, written
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset, Feature, numbering_of
from parallax_runner.graph.build import OWN_DATA_KEYS
from parallax_runner.track.tracker import DatasetFacts

DIGEST_CHARS = 16


def dataset_facts(config: RunConfig, dataset: Dataset) -> list[DatasetFacts]:
    """Returns the facts about the training data, and about the validation data if there is any. Returns an empty list
    for a script, which reads its data itself.

    The digest covers the data configuration, the features' shapes and dtypes, the numbering of the examples, and the
    name and size of the split. It does not cover the contents of the examples.
    """
    target = config.model["_target_"]
    if target == SCRIPT:
        return []
    source: dict[str, Any] = {key: value for key, value in written(config)["data"].items() if key not in OWN_DATA_KEYS}
    name = source["_target_"]
    if target == FIT:
        name, source = "fit", {"_target_": "fit", "script": config.model["path"] or config.model["module"]}
    features = {key: _described(one) for key, one in sorted(dataset.features.items())}
    sizes = {"training": dataset.train_size, "validation": dataset.validation_size}
    found = []
    for context, examples in sizes.items():
        whole = [source, features, numbering_of(dataset), context, examples]
        digest = hashlib.sha256(json.dumps(whole, sort_keys=True, default=str).encode()).hexdigest()[:DIGEST_CHARS]
        if examples:
            found.append(DatasetFacts(name, digest, context, features, int(examples), source))
    return found


def _described(feature: Feature) -> dict[str, Any]:
    kind = {} if feature.kind == "dense" else {"kind": feature.kind}
    return {"shape": list(feature.shape), "dtype": feature.dtype, **kind}
