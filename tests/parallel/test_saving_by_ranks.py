"""Checkpoints that all ranks write together are those of one device, and any ranks restore them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import damage, files_of, list_checkpoints
from parallax_runner.launch import processes
from parallax_runner.launch.job import Job, LaunchSpec, thread_environment
from tests.parallel.conftest import Forked
from tests.parallel.saving_worker import PARTITIONED, TABLES
from tests.shared import shared

pytestmark = pytest.mark.timeout(900)

# Every way but those in which a save must fail.
WAYS = ("copied", "waiting", "half", "elsewhere", "after")
RANKS = (2, 3)
Values = dict[str, np.ndarray]


def launch(folder: Path, ranks: int, orders: list[dict[str, Any]]) -> None:
    for order in orders:
        (folder / order["name"]).mkdir()
    (folder / "cases.json").write_text(json.dumps([order | {"ranks": ranks} for order in orders]))
    job = Job(
        run_dir=folder,
        workers=ranks,
        servers=0,
        env=thread_environment(1),
        worker_module="tests.parallel.saving_worker",
    )
    result = processes.run(LaunchSpec(job, Forked()), on_message=lambda message: None)
    told = "\n".join(result.failure.last_lines) if result.failure else ""
    assert result.status == "finished", f"{result.failure}\n{told}"


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The folder with the checkpoints that so many ranks have written."""

    def of(ranks: int) -> Path:
        def write(folder: Path) -> Path:
            launch(folder, ranks, [{"name": "saved", "start": None}])
            return folder

        return shared(tmp_path_factory, f"saved_by_{ranks}", write) / "saved"

    return of


def expected(saved: Path, way: str) -> Values:
    with np.load(saved / f"{way}.npz") as file:
        return dict(file)


def values(prefix: Path) -> Values:
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def expect_same(found: Values, wanted: Values) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name].astype(np.float64), value, err_msg=name)


def prefix_in(folder: Path) -> Path:
    (prefix,) = list_checkpoints(folder)
    return prefix


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint_has_the_values_of_the_step(way: str, ranks: int, saved: Callable[[int], Path]) -> None:
    folder = saved(ranks)
    prefix = prefix_in(folder / way)
    assert damage(prefix) is None
    found = values(prefix)
    expect_same(found, expected(folder, way))
    assert {name: value.shape for name, value in found.items() if name in TABLES} == {
        name: shape for name, (shape, _) in TABLES.items()
    }
    names = {f"{name}/Momentum" for name in TABLES} | {f"{PARTITIONED}/Momentum"}
    assert names <= found.keys()
    assert {path.name for path in (folder / way).iterdir()} == {
        "checkpoint",
        f"{prefix.name}.json",
        *(path.name for path in files_of(prefix)),
    }


@pytest.mark.parametrize("ranks", RANKS)
def test_the_ranks_that_see_the_folder_write(ranks: int, saved: Callable[[int], Path]) -> None:
    folder = saved(ranks)
    for way in WAYS:
        parts = [int((folder / f"{way}_{rank}.parts").read_text()) for rank in range(ranks)]
        assert all(parts[1:]) or (way == "elsewhere" and not any(parts[1:]))
        assert parts[0] >= max(parts) - 1
        assert len(files_of(prefix_in(folder / way))) == 1 + 1 + sum(parts)  # the index, and what is not spread


@pytest.mark.parametrize("ranks", RANKS)
def test_a_rank_that_cannot_write_is_told_and_publishes_nothing(ranks: int, saved: Callable[[int], Path]) -> None:
    folder = saved(ranks)
    told = json.loads((folder / "told.json").read_text())
    assert "could not be written" in told["full"] and "No space left on device" in told["full"]
    assert "«deep» contains NaN" in told["spoilt"]
    assert [way for way in told if told[way]] == ["full", "spoilt"]
    assert [list((folder / way).iterdir()) for way in ("full", "spoilt")] == [[], []]
