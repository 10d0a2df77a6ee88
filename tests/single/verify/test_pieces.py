"""Whole values are cut into the pieces of a partitioner, and joined again."""

from __future__ import annotations

import numpy as np
import pytest

from parallax_runner.errors import ParallaxError
from parallax_runner.graph.single_device_graph import Variable
from parallax_runner.verify.pieces import from_pieces, to_pieces


def piece(number: int, rows: int, first: int) -> Variable:
    name = f"table/part_{number}"
    return Variable(name, (rows, 2), "float32", f"{name}/Assign", True, "table", (5, 2), (first, 0))


PIECES = [piece(0, 3, 0), piece(1, 2, 3)]
WHOLE = {"table": np.arange(10.0).reshape(5, 2)}


def test_there_and_back() -> None:
    cut = to_pieces(PIECES, WHOLE)
    np.testing.assert_array_equal(cut["table/part_1"], [[6, 7], [8, 9]])
    np.testing.assert_array_equal(from_pieces(PIECES, cut)["table"], WHOLE["table"])


@pytest.mark.parametrize("values", [{}, WHOLE | {"other": np.zeros(1)}, {"table": np.zeros([4, 2])}])
def test_refuses_other_values(values: dict[str, np.ndarray]) -> None:
    with pytest.raises(ParallaxError, match=r"do not match|has shape"):
        to_pieces(PIECES, values)
