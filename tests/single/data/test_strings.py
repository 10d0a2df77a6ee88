"""Arrays of strings: in memory, and in files that workers map into memory."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from parallax_runner.data import strings
from parallax_runner.data.digest import digest_of
from parallax_runner.data.from_arrays import Arrays, arrays_dataset
from parallax_runner.data.identity import FIRST_EXAMPLES
from parallax_runner.errors import DataError
from parallax_runner.shipment.data_files import data_bytes, load_data, save_data
from parallax_runner.shipment.shipment_folder import make_empty


def random_words(shape: tuple[int, ...], seed: int = 3) -> np.ndarray:
    """Text with signs of any plane and any length, also none."""
    draws = random.Random(seed)
    signs = "aé日🙂\0 \n"
    found = np.empty(shape, dtype=object)
    for place in np.ndindex(shape):
        found[place] = "".join(draws.choice(signs) for _ in range(draws.randrange(6)))
    return found


@pytest.mark.parametrize("shape", [(30,), (7, 3), (5, 2, 2), (4, 0)])
def test_stored_strings_are_read_as_they_were(shape: tuple[int, ...], tmp_path: Path) -> None:
    given = random_words(shape)
    array = strings.as_bytes(given, "x")
    strings.save(array, tmp_path / "words")
    stored = strings.load(tmp_path / "words", shape)
    assert len(stored) == len(given) and stored.ndim == given.ndim and stored.shape == given.shape
    for rows in (slice(1, 4), np.array([3, 0, 3]), slice(None)):
        assert stored[rows].tolist() == [[*row] if isinstance(row, list) else row for row in array[rows].tolist()]
    assert [one.decode() for one in stored[:].ravel()] == given.ravel().tolist()
    files = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert 0 <= files - strings.stored_bytes(array) <= 256  # the heads of two files


@pytest.mark.parametrize("array", [np.array(["ü", "b"]), np.array([b"\xc3\xbc", b"b"]), np.array(["ü", b"b"], object)])
def test_strings_of_numpy_become_bytes(array: np.ndarray) -> None:
    assert strings.as_bytes(array, "x").tolist() == [b"\xc3\xbc", b"b"]
    assert strings.dtype_name(array) == "string"


def test_text_without_utf_8_is_refused() -> None:
    with pytest.raises(DataError, match=r"«x»: expected strings that UTF-8 can represent, found '\\ud800'"):
        strings.as_bytes(np.array(["\ud800"]), "«x»")


def dataset(words: np.ndarray, batch_size: int = 4) -> Arrays:
    x = {"word": words, "words": words[:, None].repeat(2, 1), "list": ["b", "ä", *["c"] * (len(words) - 2)]}
    return arrays_dataset(x, np.arange(len(words)), None, batch_size=batch_size, shuffle=True, validation=(x, words))


def test_a_dataset_of_strings_travels(tmp_path: Path) -> None:
    made = dataset(random_words((11,)))
    assert {name: one.dtype for name, one in made.features.items() if name != "y"} == dict.fromkeys(
        ("word", "words", "list"), "string"
    )
    save_data(made, make_empty(tmp_path / "data"))
    found = load_data(tmp_path / "data")
    assert found.features == made.features
    assert isinstance(found, Arrays) and found.contents() == made.contents()
    assert data_bytes(made) > 0
    for start in (0, 4, 12):
        for name, array in made.train_batch(start, 4).items():
            assert found.train_batch(start, 4)[name].tolist() == array.tolist(), name
    assert found.validation_batch(2, 5)["words"].tolist() == made.validation_batch(2, 5)["words"].tolist()


def test_other_strings_have_another_digest(tmp_path: Path) -> None:
    words = strings.as_bytes(random_words((FIRST_EXAMPLES * 1000,)), "x")
    other = words.copy()
    other[-1] += b"!"
    assert digest_of({"x": words}) != digest_of({"x": other})
    strings.save(words, tmp_path / "words")
    stored = strings.load(tmp_path / "words", words.shape)
    assert digest_of({"x": stored}) == digest_of({"x": words})  # type: ignore[dict-item]


def test_no_file_holds_pickled_objects(tmp_path: Path) -> None:
    save_data(dataset(random_words((5,))), make_empty(tmp_path / "data"))
    arrays = [np.load(path, allow_pickle=False) for path in sorted((tmp_path / "data").glob("*.npy"))]
    assert {array.dtype for array in arrays} == {np.dtype("int64"), np.dtype("uint8")}
