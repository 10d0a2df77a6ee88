"""Rules that make keys of strings and integers."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.columns.column import NOTHING_LEARNED
from parallax_runner.data.table.columns.ids import Ids
from parallax_runner.data.table.columns.keys import Keys, why_no_keys
from parallax_runner.data.table.columns.rule import Rule
from parallax_runner.data.table.stored_table import MISSING_INTEGER, Cell
from tests.single.data.table.in_memory import strings

WORDS = ["", "a", "b", "ü 水"]


def test_ids_have_a_limit_and_keys_have_none() -> None:
    rules: list[Rule] = [Ids(hash=7), Keys(integers=False), Keys(integers=True)]
    assert [rule.sizes(NOTHING_LEARNED) for rule in rules] == [(7,), (), ()]
    assert [rule.grows for rule in rules] == [False, True, True]
    assert [rule.cell for rule in rules] == [Cell.STRING, Cell.STRING, Cell.INTEGER]
    assert all(rule.first() == 0 and rule.counting(None).state() == NOTHING_LEARNED for rule in rules)


def test_strings_have_the_same_keys_in_files_and_in_a_served_model() -> None:
    rule = Keys(integers=False)
    found = rule.of_values(np.arange(4, dtype=np.int32), rule.lookup(NOTHING_LEARNED, strings(WORDS)))
    served = rule.served(NOTHING_LEARNED, None, tf.constant(WORDS), tf)
    np.testing.assert_array_equal(found, served)
    assert len(set(found.tolist())) == 4 and found.dtype == np.int64


def test_a_blank_integer_is_refused_with_its_row() -> None:
    cells = Cells(np.array([4, -4, MISSING_INTEGER, MISSING_INTEGER + 1]), np.array([1, 2, 1]))
    found = Keys(integers=True).faults(cells)
    assert found is not None and found.rows.tolist() == [1]
    assert Keys(integers=True).faults(Cells(np.array([-1, 2]))) is None


@pytest.mark.parametrize(
    ("grows", "integers", "others", "told"),
    [
        (False, True, [], "expected grows: true beside integers: true; for integers below N, set ids: N"),
        (True, False, ["hash", "oov"], "expected grows without hash, oov, because the column has keys and no ids"),
        (True, True, [], None),
        (False, False, ["hash"], None),
    ],
)
def test_settings_fit_together(grows: bool, integers: bool, others: list[str], told: str | None) -> None:
    assert why_no_keys(grows=grows, integers=integers, others=others) == told
