"""Strings of one length are numbered as integers, with the same result as strings."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from parallax_runner.data.table.fixed_width import as_integers, bytes_of_integers

TYPES = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize("sliced", [False, True])
def test_integers_have_the_bytes_of_the_strings(type_: pa.DataType, width: int, sliced: bool) -> None:
    generator = random.Random(width)
    words = ["".join(generator.choices("ab\x00", k=width * generator.randrange(2))) for _ in range(50)]
    given = pa.array([*words, "other", *words], type_).slice(51) if sliced else pa.array(words, type_)
    found = as_integers(given)
    assert found is not None
    assert found.width == width
    assert found.has_text.tolist() == [word != "" for word in words]
    assert len(set(found.integers.tolist())) == len(set(words) - {""})
    assert bytes_of_integers(found.integers, width).tobytes() == "".join(words).encode()


@pytest.mark.parametrize("words", [["a", "bb"], ["é", "e"], ["123456789"], ["a", "", "bbb"]])
def test_strings_of_several_lengths_or_of_many_bytes_stay_strings(words: list[str]) -> None:
    assert as_integers(pa.array(words)) is None


@pytest.mark.parametrize("words", [[], [""], ["", ""]])
def test_empty_strings_have_no_width(words: list[str]) -> None:
    found = as_integers(pa.array(words, pa.string()))
    assert found is not None
    assert (found.width, found.has_text.tolist(), found.integers.tolist()) == (0, [False] * len(words), [])
