"""Tables of a checkpoint are taken into tables of another capacity."""

from __future__ import annotations

import numpy as np
import pytest

from parallax_runner.analysis.variable_info import GrowingTable
from parallax_runner.checkpoints.warm_start import Stored, Wanted
from parallax_runner.driver.grown_tables import Resized, resized_tables
from parallax_runner.errors import CheckpointError
from tests.growing_keys import keys_of_bucket

PARTS = ("keys", "index", "fill", "overflow")
MAP = tuple(f"items/{part}" for part in PARTS)
FILL = np.zeros([1024], np.int32)
FILL[3] = 2
KEYS = np.zeros([1024, 4], np.int64)
KEYS[3, :2] = keys_of_bucket(3, 2)
VALUES = {"old/keys": KEYS, "old/fill": FILL, "old/overflow": np.arange(1024)}
STORED = {
    "old/rows": Stored((4096, 2), "float32"),
    "old/keys": Stored((1024, 4), "int64"),
    "old/index": Stored((1024, 8), "int32"),
    "old/fill": Stored((1024,), "int32"),
    "old/overflow": Stored((1024,), "int64"),
}


def resized(places: int, *, has_overflow_rows: bool = False) -> Resized:
    table = GrowingTable("items", "items/rows", MAP, places, has_overflow_rows)
    wanted = [
        Wanted("items/rows", (1024 * (places + has_overflow_rows), 2), "float32"),
        Wanted("items/keys", (1024, places), "int64"),
    ]
    chosen = {f"items/{part}": f"old/{part}" for part in ("rows", *PARTS)}
    return resized_tables("day1", [table], chosen, STORED, wanted, VALUES.__getitem__)


def test_the_same_capacity_needs_nothing() -> None:
    assert resized(4) == Resized()


@pytest.mark.parametrize(("places", "has_overflow_rows"), [(2, False), (7, True), (4, True)])
def test_rows_and_maps_are_left_in_files(places: int, has_overflow_rows: bool) -> None:
    found = resized(places, has_overflow_rows=has_overflow_rows)
    assert found.rows.keys() == {"items/rows"}
    assert found.values.keys() == set(MAP)
    assert found.files.keys() == {*found.rows.values(), *found.values.values()}
    rows, keys = found.files[found.rows["items/rows"]], found.files[found.values["items/keys"]]
    assert len(rows) == 1024 * (places + has_overflow_rows)
    assert {place: row for place, row in enumerate(rows.tolist()) if row >= 0} == {3 * places: 12, 3 * places + 1: 13}
    assert keys.shape == (1024, places) and keys[3, :2].tolist() == KEYS[3, :2].tolist()
    (note,) = found.notes
    assert "«items» takes the rows of 2 keys from a table with 4 rows a bucket" in note


def test_a_bucket_with_too_many_keys_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"«items» has 2 keys in the checkpoint, but room for 1.* at least 2048"):
        resized(1)
