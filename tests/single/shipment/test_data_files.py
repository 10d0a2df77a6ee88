"""Data that was written to files yields in another process what it yields in the process that made it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.data.dataset import Shared, is_uneven
from parallax_runner.data.from_arrays import Arrays, arrays_dataset
from parallax_runner.data.linear import load
from parallax_runner.errors import LaunchError, StorageError
from parallax_runner.files.plain import remove
from parallax_runner.graph.tf_data.tf_dataset import TfDataset
from parallax_runner.shipment.data_files import OWN_OBJECT, data_bytes, load_data, save_data, why_data_stays
from parallax_runner.shipment.received import Received
from parallax_runner.shipment.shipment_folder import Contents, check_space, folder_of, make_empty, removed_at_end
from tests.single.shipment.pipelines import PIPELINES, numbers

STEPS = 18  # more than a pass, so that the second order of a shuffle counts too
READS = """
import json, sys
from pathlib import Path
from parallax_runner.process.tensorflow_import import import_tensorflow
import_tensorflow()
from parallax_runner.shipment.data_files import load_data
from tests.single.shipment.test_data_files import digest_of
print(json.dumps({folder.name: digest_of(load_data(folder)) for folder in Path(sys.argv[1]).iterdir()}))
"""


def digest_of(dataset: Any) -> list[str]:
    """Digests of what the second of two workers reads in each step, and of its validation batches."""
    found = []
    share = dataset.share(1, 2, 1)
    for step in range(STEPS):
        found.append(_digest(share.train_batches(step * dataset.global_batch)[0]))
    if dataset.validation_size:
        found += map(_digest, share.validation_batches(in_parts=False))
    return found


def _digest(batch: Mapping[str, np.ndarray]) -> str:
    content = {name: [array.dtype.name, array.tolist()] for name, array in batch.items()}
    return hashlib.sha256(repr(sorted(content.items())).encode()).hexdigest()[:12]


@pytest.fixture(scope="module")
def digests(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Digests of all pipelines, in this process and in another one."""
    folder, here = tmp_path_factory.mktemp("pipelines"), {}
    for name, make in PIPELINES.items():
        dataset = TfDataset.of(make(), numbers().batch(4) if name in ("slices", "shuffle") else None, exact=False)
        assert why_data_stays(dataset) is None, name  # type: ignore[arg-type]
        save_data(dataset, make_empty(folder / name))  # type: ignore[arg-type]
        here[name] = digest_of(dataset)
    done = subprocess.run([sys.executable, "-c", READS, folder], check=True, capture_output=True, text=True)
    return here, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline(name: str, digests: tuple[dict[str, list[str]], dict[str, list[str]]]) -> None:
    here, there = digests
    assert len(here[name]) >= STEPS
    assert there[name] == here[name]


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.data.Dataset.from_generator(lambda: range(48), output_signature=tf.TensorSpec([], tf.int64)),
        lambda: numbers().map(lambda number: tf.ensure_shape(tf.numpy_function(abs, [number], tf.int64), [])),
        lambda: numbers().map(lambda number: tf.ensure_shape(tf.py_function(abs, [number], tf.int64), [])),
        lambda: numbers().filter(lambda number: tf.numpy_function(bool, [number], tf.bool)),
    ],
)
def test_python_stays(make: Any) -> None:
    dataset: Any = TfDataset.of(make().batch(4), exact=False, is_counted=False)
    assert why_data_stays(dataset) == "the data calls Python code (from_generator, py_function or numpy_function)"
    held_back: Any = TfDataset.of(numbers().batch(4), make().take(8).batch(4), exact=False)
    assert str(why_data_stays(held_back)).startswith("validation_data calls Python code")


def test_an_object_of_the_users_own_stays() -> None:
    assert why_data_stays(load(examples=8, validation_examples=4, noise=0.0, seed=1)) == OWN_OBJECT


def arrays() -> Arrays:
    x = {"a b/c": np.arange(80).reshape(20, 4), "half": np.arange(20).astype(ml_dtypes.bfloat16)}
    y = np.arange(20) % 3 > 0
    held_back: dict[str, Any] = {"validation": (x, y), "validation_sizes": (3, 9, 8)}
    return arrays_dataset(x, y, None, batch_size=4, shuffle=True, **held_back).with_seed(5)


def test_arrays(tmp_path: Path) -> None:
    made = arrays()
    assert why_data_stays(made) is None and data_bytes(made) == 2 * (80 * 8 + 20 * 2 + 20)
    save_data(made, make_empty(tmp_path / "data"))
    found = load_data(tmp_path / "data")
    assert (
        not isinstance(found, Shared)
        and is_uneven(found, 3)
        and not is_uneven(found, 2)
        and found.features == made.features
    )
    for start in (0, 12, 40):
        for name, array in made.train_batch(start, 8).items():
            np.testing.assert_array_equal(found.train_batch(start, 8)[name], array)
    for name, array in made.validation_batch(3, 9).items():
        np.testing.assert_array_equal(found.validation_batch(3, 9)[name], array)
    assert isinstance(found, Arrays) and found.contents() == made.contents() and found.sizes() == made.sizes()
    assert found.validation_rows == [range(3), range(3, 12), range(12, 20)]
    assert isinstance(found._train["a b/c"], np.memmap)  # the processes of a host share it


def test_arrays_whose_partial_batch_is_omitted(tmp_path: Path) -> None:
    for whole_only in (False, True):
        made = arrays_dataset(np.arange(7), np.arange(7), None, batch_size=4, shuffle=False)
        save_data(made.with_whole_batches() if whole_only else made, make_empty(tmp_path / "data"))
        found = load_data(tmp_path / "data")
        assert (found.train_size, is_uneven(found, 2)) == ((4, False) if whole_only else (8, True))


def test_nobody_else_reads_them(tmp_path: Path) -> None:
    assert stat.S_IMODE(make_empty(tmp_path / "data").stat().st_mode) == 0o700


@pytest.mark.parametrize("part", ["shipment", "data"])
@pytest.mark.parametrize("fault", ["writable", "link"])
def test_what_another_user_can_have_written_is_not_loaded(part: str, fault: str, tmp_path: Path) -> None:
    data = make_empty(tmp_path / "data")
    make_empty(folder_of(tmp_path))
    Contents(None, None, str(data)).save(tmp_path)
    maker: Any = None
    Received.of(tmp_path, maker)
    folder = {"shipment": folder_of(tmp_path), "data": data}[part]
    if fault == "writable":
        folder.chmod(0o777)
    else:
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    reason = {"writable": "other users can write to this folder", "link": "it is not a folder"}[fault]
    with pytest.raises(LaunchError, match=rf"{part}: {reason}, so no graph is loaded from it"):
        Received.of(tmp_path, maker)


def test_too_little_space(tmp_path: Path) -> None:
    check_space(tmp_path, 1, "it", "remedy")
    told = rf"{tmp_path}: the data needs 1e\+06 TB while the run lasts, but the disk has only .* of free space: buy one"
    with pytest.raises(StorageError, match=told):
        check_space(tmp_path, 10**18, "the data", "buy one")


def test_they_go_when_the_run_ends(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), removed_at_end(tmp_path):
        make_empty(folder_of(tmp_path))  # the contents are not written yet
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is complete, so its status stays."""

    def fail(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with removed_at_end(tmp_path):
        make_empty(folder_of(tmp_path))
        monkeypatch.setattr(shutil, "rmtree", fail)
    told = f"parallax_runner: {folder_of(tmp_path)}: the files for the workers cannot be removed: Read-only file system"
    assert told in capsys.readouterr().err


def test_a_link_is_removed_and_not_followed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "file").touch()
    folder_of(tmp_path).symlink_to(mine)
    remove(folder_of(tmp_path))
    assert (mine / "file").exists() and not folder_of(tmp_path).exists()
    make_empty(folder_of(tmp_path))
