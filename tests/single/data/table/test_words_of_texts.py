"""The kind `text`: words as Keras' TextVectorization finds them, from every format."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from parallax_runner.data.table.source import load
from parallax_runner.data.table.stored_table import SPLITS, STANDARDIZES, Cell, RawColumn, Words
from parallax_runner.data.table.table_dataset import TableDataset
from parallax_runner.data.table.words_of_texts import words_of_texts
from parallax_runner.errors import ConfigError, DataError
from tests.single.data.table.test_served_features import texts_of
from tests.single.data.table.written import written

EVERY_CHARACTER = "".join(map(chr, [*range(1, 0x3100), *range(0x1F600, 0x1F610)]))


@pytest.mark.parametrize(("standardize", "split"), list(itertools.product(STANDARDIZES, SPLITS)))
def test_words_are_those_of_tensorflow_for_every_character(standardize: str, split: str) -> None:
    between = "a".join(EVERY_CHARACTER)
    texts = [EVERY_CHARACTER, between, "", " \0 ", *texts_of(200, np.random.default_rng(1))]
    lengths, words = words_of_texts(pa.array([*texts, None]), Words(standardize, split))
    assert lengths[-1] == 0 or not any(words.slice(len(words) - lengths[-1]).to_pylist())
    rows = np.split(np.array(words.to_pylist(), object), np.cumsum(lengths)[:-1])[:-1]
    column = _column(standardize=standardize, split=split)
    expected = column.values(tf.constant(texts), tf).to_list()
    assert [[word.encode() for word in row if word] for row in rows] == expected


def _column(**settings: Any) -> Any:
    from parallax_runner.data.table.columns.kinds import columns_of

    (column,) = columns_of({"t": {"text": settings}})
    return column


def loaded(tmp_path: Path, path: Path, settings: dict[str, Any]) -> TableDataset:
    dataset = load(
        train=str(path), columns={"t": {"text": settings}}, seed=1, shuffle="off", cache_dir=str(tmp_path / "cache")
    )
    assert isinstance(dataset, TableDataset)
    return dataset


@pytest.mark.parametrize(("standardize", "split"), list(itertools.product(STANDARDIZES, SPLITS)))
def test_ids_are_those_of_keras(standardize: str, split: str, tmp_path: Path) -> None:
    texts = texts_of(60, np.random.default_rng(2))
    path = written(tmp_path / "t.parquet", [RawColumn("t", Cell.STRING)], [(text,) for text in texts])
    dataset = loaded(tmp_path, path, {"standardize": standardize, "split": split, "padded_to": 7, "min_count": 3})
    found = dataset.vocabulary_of("t")
    assert found is not None and found.first == 2
    layer = keras.layers.TextVectorization(
        standardize=None if standardize == "none" else standardize,
        split=split,
        vocabulary=[word.decode() for word in found.words],
        output_sequence_length=7,
    )
    np.testing.assert_array_equal(dataset.train_batch(0, 60)["t"], layer(tf.constant(texts)).numpy())


@pytest.mark.parametrize("suffix", ["csv", "tsv.gz", "jsonl", "parquet", "arrow", "tfrecord"])
def test_every_format_has_texts(suffix: str, tmp_path: Path) -> None:
    texts = ["One two, one.", "", "ÉÉ\ttwo"]
    path = written(tmp_path / f"t.{suffix}", [RawColumn("t", Cell.STRING)], [(text or '"" ',) for text in texts])
    batch = loaded(tmp_path, path, {}).train_batch(0, 3)
    assert batch["t/values"].tolist() == [1, 2, 1, 3, 2]
    assert batch["t/row_splits"].tolist() == [0, 3, 3, 5]


def test_a_list_is_no_text(tmp_path: Path) -> None:
    path = written(tmp_path / "t.parquet", [RawColumn("t", Cell.STRING, is_list=True)], [(("a", "b"),)])
    with pytest.raises(DataError, match=r"row 1, column t: expected a string in UTF-8, got"):
        loaded(tmp_path, path, {})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"standardize": "upper"}, r"text\.standardize=upper: expected lower_and_strip_punctuation, lower, "),
        ({"split": "word"}, r"text\.split=word: expected whitespace or character"),
        ({"ids": 5}, r"text\.ids=5: no such setting"),
        ({"hash": 5, "oov": 2}, r"columns\.t\.text: expected hash without oov"),
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        _column(**settings)


@pytest.mark.parametrize("split", SPLITS)
def test_a_part_of_an_array_of_texts(split: str) -> None:
    texts = pa.array(["ab c", "é d", "", "f"])
    whole, part, nothing = (words_of_texts(one, Words("none", split)) for one in (texts, texts[1:3], texts[:0]))
    assert part[0].tolist() == whole[0][1:3].tolist()
    start = whole[0][0]
    assert part[1].to_pylist() == whole[1].to_pylist()[start : start + part[0].sum()]
    assert (nothing[0].tolist(), nothing[1].to_pylist()) == ([], [])


def test_null_stands_for_none() -> None:
    assert _column(standardize=None).standardize == "none"
