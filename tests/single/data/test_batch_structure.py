"""Features by name, and Keras' batch of them."""

from __future__ import annotations

import pytest

from parallax_runner.data.batch_structure import BatchStructure
from parallax_runner.errors import DataError


@pytest.mark.parametrize(
    ("element", "names"),
    [
        ("a", ["x"]),
        (("a",), ["x"]),
        (("a", "b", "c"), ["x", "y", "sample_weight"]),
        (({"id": "a", "dense": "b"}, "c"), ["id", "dense", "y"]),
        ((("a", ("b", "c")), {"rank": "d"}), ["x_0", "x_1_0", "x_1_1", "rank"]),
        (({"id": "a"}, {"id": "b"}), ["x_id", "y_id"]),
    ],
)
def test_what_is_flattened_is_put_together_again(element: object, names: list[str]) -> None:
    structure = BatchStructure.of(element)
    features = structure.flatten(element)
    assert list(features) == structure.names == names
    whole = element if isinstance(element, tuple) else (element,)
    assert structure.as_batch(features) == (*whole, None, None)[:3]


def test_an_element_of_four_parts_is_refused() -> None:
    with pytest.raises(DataError, match=r"a tuple of length 4; expected \(x, y\)"):
        BatchStructure.of((1, 2, 3, 4))
