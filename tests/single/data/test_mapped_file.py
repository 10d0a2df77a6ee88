from pathlib import Path

import pytest

from parallax_runner.data.dataset import Dataset
from parallax_runner.data.text import load
from parallax_runner.errors import DataError


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    (tmp_path / "text.txt").write_text("a few words a line\n" * 500)
    return load(
        path=str(tmp_path / "text.txt"),
        vocab_size=10,
        sequence_length=4,
        validation_examples=4,
        seed=1,
        cache_dir=str(tmp_path / "cache"),
    )


def mapped(tmp_path: Path, name: str) -> Path:
    (found,) = (tmp_path / "cache").glob(f"*/{name}.npy")
    return found


def test_data_that_is_cut_is_named_before_it_is_read(dataset: Dataset, tmp_path: Path) -> None:
    dataset.train_batch(0, 4)
    path = mapped(tmp_path, "train")
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.truncate(100)
    with pytest.raises(DataError, match=rf"{path}: this file was truncated .* from {size} bytes to 100"):
        dataset.train_batch(4, 4)


def test_data_that_is_gone_is_named(dataset: Dataset, tmp_path: Path) -> None:
    path = mapped(tmp_path, "validation")
    path.unlink()
    dataset.train_batch(0, 4)
    with pytest.raises(DataError, match=rf"{path}: this file disappeared"):
        dataset.validation_batch(0, 4)
