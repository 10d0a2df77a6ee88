"""Every way of reading gives the same features, so the benchmark compares the same work."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from benchmarks import criteo
from benchmarks.read_ways import BATCH_ROWS, TEXT, WAYS, dataset, prepare, read

ROWS = 3 * BATCH_ROWS
PEERS = [way for way in WAYS if way.startswith("tf.data")]
ORDERS = [way for way in WAYS if way not in PEERS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("read")
    criteo.write(path / TEXT, 1)
    told = prepare(path, ROWS)
    assert (told["rows"], told["peer_rows"]) == (criteo.ROWS_PER_BLOCK, ROWS)
    return path


@pytest.mark.parametrize("way", PEERS)
def test_tensorflow_reads_what_the_table_has(way: str, folder: Path) -> None:
    table = dataset(folder)
    for number, batch in enumerate(itertools.islice(WAYS[way](folder), 3)):
        expected = table.training_rows(number * BATCH_ROWS, BATCH_ROWS)
        for name in ("label", "dense", "categorical"):
            np.testing.assert_allclose(np.asarray(batch[name]), expected[name], rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("way", ORDERS)
def test_an_epoch_of_the_table_has_every_row(way: str, folder: Path) -> None:
    table = dataset(folder)
    batches = list(itertools.islice(WAYS[way](folder), -(-table.train_size // BATCH_ROWS)))
    expected = table.training_rows(0, table.train_size)
    for name in ("label", "categorical"):
        all_rows = np.concatenate([batch[name] for batch in batches])[: table.train_size]
        assert all_rows.sum() == expected[name].sum(), name


def test_what_a_way_tells(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_setaffinity", lambda _pid, _cores: None)
    told = read(ORDERS[0], folder, ROWS)
    assert told["rows"] >= ROWS
    assert min(told.values()) > 0
    assert told["peak_bytes"] >= told["first_bytes"]
