"""Features by name, and Keras' batch of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from parallax_runner.data.batch_structure import BatchStructure, packed, unpacked
from parallax_runner.errors import DataError


class Pair(NamedTuple):
    first: Any
    second: Any


@pytest.mark.parametrize(
    ("element", "names"),
    [
        ("a", ["x"]),
        (("a",), ["x"]),
        (("a", "b", "c"), ["x", "y", "sample_weight"]),
        (({"id": "a", "dense": "b"}, "c"), ["id", "dense", "y"]),
        ((("a", ("b", "c")), {"rank": "d"}), ["x_0", "x_1_0", "x_1_1", "rank"]),
        (({"id": "a"}, {"id": "b"}), ["x_id", "y_id"]),
        ({"id": "a", "rating": ("b", "c")}, ["id", "rating_0", "rating_1"]),
        (("a", "b", "c", {"d": "e"}), ["part_0", "part_1", "part_2", "d"]),
        (Pair("a", Pair("b", "c")), ["x", "y_0", "y_1"]),
        (({"user": {"id": "a"}, "item": {"id": "b"}}, "c"), ["x_user_id", "x_item_id", "y"]),
        (({"ids": ({"id": "a"}, {"id": "b"})}, "c"), ["x_ids_0_id", "x_ids_1_id", "y"]),
        ({"a_b": "a", "a": {"b": "b", "c": "c"}, "d": {"b": "d"}}, ["x_a_b", "x_a_b_2", "x_a_c", "x_d_b"]),
    ],
)
def test_what_is_flattened_is_put_together_again(element: object, names: list[str]) -> None:
    structure = BatchStructure.of(element)
    features = structure.flatten(element)
    assert list(features) == structure.names == names
    built = structure.element_of(features)
    assert built == element and type(built) is type(element)


@pytest.mark.parametrize(
    ("given", "element"),
    [
        (("x",), "x"),
        ((("x", "z"),), (("x", "z"),)),
        (("x", None, "w"), "x"),
        (("x", "y"), ("x", "y")),
        (("x", ("y", {"z": "y"}), "w"), ("x", ("y", {"z": "y"}), ("w", {"z": "w"}))),
    ],
)
def test_arrays_are_packed_as_keras_does(given: tuple[Any, ...], element: Any) -> None:
    assert packed(*given) == element


def test_validation_data_of_four_parts_is_refused() -> None:
    assert unpacked(["x", "y"]) == ("x", "y", None)
    with pytest.raises(DataError, match=r"a tuple of length 4; expected x, \(x, y\)"):
        unpacked((1, 2, 3, 4))
