"""What identifies the data of a run: the examples, not their path, their order or the size of the batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallax_runner.config.frozen import from_plain
from parallax_runner.config.schema import RunConfig
from parallax_runner.data import clicks, digest, linear, text
from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.data.dataset import Dataset, Feature
from parallax_runner.data.from_arrays import arrays_dataset
from parallax_runner.data.identity import Contents, difference_in, differences, identity_of, loaded_contents

ROWS = np.arange(100.0)


def config(**data: Any) -> RunConfig:
    return from_plain({"data": data})


def identity(dataset: Dataset) -> Contents:
    return identity_of(config(), dataset)


def arrays(rows: np.ndarray, *, seed: int = 1, held_back: np.ndarray = ROWS) -> Dataset:
    return ArrayDataset(train={"x": rows}, validation={"x": held_back}, words_per_example=None, seed=seed)


def changed(before: Dataset, now: Dataset) -> list[str]:
    return differences(identity(before).training, identity(now).training)


def test_the_seed_of_the_order_does_not_change_the_examples() -> None:
    one, other = identity(arrays(ROWS)), identity(arrays(ROWS, seed=2))
    assert one.training == other.training
    assert difference_in(one, other) == "training data (the order of the examples differs)"
    assert difference_in(one, identity(arrays(ROWS))) is None


def test_one_other_number_is_other_data() -> None:
    other = ROWS.copy()
    other[57] += 1e-9
    assert changed(arrays(ROWS), arrays(other)) == ["the content of the examples differs"]
    told = "validation data (the content of the examples differs)"
    assert difference_in(identity(arrays(ROWS)), identity(arrays(ROWS, held_back=other))) == told


def test_messages_say_sizes_and_features() -> None:
    told = changed(arrays(ROWS), arrays(np.arange(120, dtype=np.float32)))
    assert told[:2] == ["examples: 120 instead of 100", "features: x float32 [] instead of x float64 []"]


def test_blocks_of_a_large_array_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "BLOCK_BYTES", 80)
    monkeypatch.setattr(digest, "READ_BYTES", 240)
    whole = digest.digest_of({"x": ROWS})
    seen = []
    for row in range(100):
        other = ROWS.copy()
        other[row] = -1
        if digest.digest_of({"x": other}) != whole:
            seen.append(row)
    assert seen == [*range(10), *range(40, 50), *range(90, 100)]


def test_rows_larger_than_a_block_and_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "BLOCK_BYTES", 8)
    monkeypatch.setattr(digest, "READ_BYTES", 8)
    wide = ROWS.reshape(4, 25)
    assert digest.digest_of({"x": wide}) != digest.digest_of({"x": wide + 1})
    assert digest.digest_of({"x": wide[:0]}) != digest.digest_of({"x": wide})


def test_words_are_compared_by_their_letters() -> None:
    first, again, other = (np.array([word], dtype=object) for word in ("a word", "a" + " word", "other"))
    assert digest.digest_of({"x": first}) == digest.digest_of({"x": again}) != digest.digest_of({"x": other})


def generated(seed: int, examples: int = 1000) -> Dataset:
    return clicks.load(dense_features=2, cardinalities=[10, 10], examples=examples, validation_examples=10, seed=seed)


def test_generated_examples_depend_on_their_seed_and_number() -> None:
    assert changed(generated(1), generated(1)) == []
    assert changed(generated(1), generated(2)) == ["the first examples differ"]
    assert changed(generated(1), generated(1, 1200)) == ["examples: 1200 instead of 1000"]
    points = [linear.load(examples=50, validation_examples=5, noise=0.1, seed=seed) for seed in (1, 2)]
    assert changed(*points) == ["the content of the examples differs"]


def words(path: Path, cache: Path) -> Dataset:
    return text.load(
        path=str(path), vocab_size=50, sequence_length=4, validation_examples=10, seed=1, cache_dir=str(cache)
    )


def test_a_moved_text_is_the_same_data(tmp_path: Path) -> None:
    lines = [f"a b c {number % 7} e f\n" for number in range(400)]
    places = {"one": lines, "two": lines, "three": [*lines[:-1], "f e a b c a\n"]}
    for folder, content in places.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "corpus.txt").write_text("".join(content))
    first, moved, other = (words(tmp_path / folder / "corpus.txt", tmp_path / "cache") for folder in places)
    assert changed(first, moved) == []
    assert "the content of the examples differs" in changed(first, other)
    again = words(tmp_path / "one" / "corpus.txt", tmp_path / "other_cache")  # tokenized in this process
    assert changed(first, again) == []


class Own:
    """A dataset of a user, which says no more than it must."""

    words_per_example = None
    train_size, validation_size = 100, 10

    def __init__(self, shift: float) -> None:
        self.shift = shift
        self.features = {"x": Feature((), "float64")}

    def train_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        return {"x": np.arange(start, start + size) + self.shift}

    def validation_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        return {"x": -np.arange(start, start + size) + self.shift}


def test_of_any_other_dataset_the_first_examples_are_read() -> None:
    assert changed(Own(0.0), Own(0.0)) == []
    assert changed(Own(0.0), Own(0.5)) == ["the first examples differ"]
    own = Own(0.0)
    own.validation_size = 0
    assert identity(own).validation == {}


def test_approximate_data_is_compared_by_features_and_size() -> None:
    approximate = config(resume="approximate")
    assert identity_of(approximate, arrays(ROWS)) == Contents({"examples": "100", "features": "x float64 []"})
    assert loaded_contents(approximate, arrays(ROWS)) == Contents({"features": "x float64 []"})


def test_the_batch_size_of_arrays_does_not_change_the_data() -> None:
    def fitted(batch_size: int, shuffle: bool = True) -> Dataset:
        return arrays_dataset({"x": ROWS}, ROWS, None, batch_size=batch_size, shuffle=shuffle)

    assert changed(fitted(8), fitted(32)) == []
    assert identity(fitted(8)).order != identity(fitted(8, shuffle=False)).order


def test_a_file_carries_the_identity_to_the_workers(tmp_path: Path) -> None:
    found = identity(arrays(ROWS))
    found.save(tmp_path / "data.json")
    assert Contents.load(tmp_path / "data.json") == found
