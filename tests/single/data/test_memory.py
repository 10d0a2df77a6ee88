"""Numbers of examples that no memory holds."""

from typing import Any

import pytest

from parallax_runner.data import clicks, images, linear, pairs, zipf
from parallax_runner.errors import ConfigError

MANY = 10**15
LINEAR = {"examples": 10, "validation_examples": 10, "noise": 0.1, "seed": 1}
IMAGES = {"image_size": 4, "classes": 2, "noise": 0.1, "examples": 10, "validation_examples": 10, "seed": 1}
ZIPF = {"vocab_size": 10, "offset": 2.7, "sequence_length": 2, "examples": 10, "validation_examples": 10, "seed": 1}
CLICKS = {"dense_features": 2, "cardinalities": [10, 3], "examples": 10, "validation_examples": 10, "seed": 1}
PAIRS = {
    **{"queries": 10, "items": 10, "clusters": 2, "affinity": 0.5},
    **{"examples": 10, "validation_examples": 10, "seed": 1},
}


@pytest.mark.parametrize(
    ("load", "sizes", "key"),
    [
        *((linear.load, LINEAR, key) for key in ("examples", "validation_examples")),
        *((images.load, IMAGES, key) for key in ("image_size", "classes", "examples", "validation_examples")),
        *((clicks.load, CLICKS, key) for key in ("examples", "validation_examples")),
        *((pairs.load, PAIRS, key) for key in ("queries", "items", "examples", "validation_examples")),
        *((zipf.load, ZIPF, key) for key in ("vocab_size", "sequence_length", "examples", "validation_examples")),
    ],
)
@pytest.mark.parametrize("number", [MANY, 10**30])
def test_what_no_memory_holds_is_refused(load: Any, sizes: dict[str, Any], key: str, number: int) -> None:
    with pytest.raises(ConfigError, match=rf"data\.{key}={number}.*this machine has .* GB of memory"):
        load(**sizes | {key: number})
    load(**sizes)
