"""Rows of two tables that stand for the same strings."""

from __future__ import annotations

import pytest

from parallax_runner.data.table.vocabularies import FRESH, Vocabulary, same_rows, vocabulary_in
from tests.single.data.table.test_columns import dataset_of

OLD = Vocabulary(2, [b"a", b"b", b"c"])


@pytest.mark.parametrize(
    ("new", "rows", "expected"),
    [
        (OLD, 5, [0, 1, 2, 3, 4]),
        (Vocabulary(2, [b"c", b"new", b"a"]), 5, [0, 1, 4, FRESH, 2]),
        (Vocabulary(1, [b"b"]), 2, [FRESH, 3]),
        (Vocabulary(2, [b"b"]), 6, [0, 1, 3, FRESH, FRESH, FRESH]),
        (Vocabulary(2, []), 2, [0, 1]),
    ],
)
def test_rows_are_found_by_their_strings(new: Vocabulary, rows: int, expected: list[int]) -> None:
    assert same_rows(OLD, new, rows).tolist() == expected


def test_the_vocabulary_of_a_run_is_read_again(tmp_path):
    given = {
        "word": {"category": {"oov": 2}},
        "tags": {"categories": {"separator": "|", "padded_to": 2}},
        "kept": {"category": {"hash": 5}},
    }
    rows = {"word": ["ü", "b", "b"], "tags": [["x"], ["x", "y"], []], "kept": ["k", "k", "l"]}
    dataset = dataset_of(tmp_path, given, rows)
    dataset.save_learned(tmp_path)
    assert dataset.columns_with_vocabulary() == ["word", "tags"]
    for column, expected in {"word": Vocabulary(2, [b"b", "ü".encode()]), "tags": Vocabulary(2, [b"x", b"y"])}.items():
        assert dataset.vocabulary_of(column) == vocabulary_in(tmp_path, column) == expected
    batch = dataset.training_rows(0, 3)
    assert batch["word"].tolist() == [3, 2, 2] and batch["tags"].tolist() == [[2, 0], [2, 3], [0, 0]]
    assert vocabulary_in(tmp_path, "kept") is dataset.vocabulary_of("kept") is None
    assert vocabulary_in(tmp_path / "elsewhere", "word") is None


def test_a_damaged_file_is_told(tmp_path):
    (tmp_path / "table.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(ValueError, match="table"):
        vocabulary_in(tmp_path, "word")
