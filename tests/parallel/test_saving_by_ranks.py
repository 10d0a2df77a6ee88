"""Checkpoints that all ranks write together are those of one device, and any ranks restore them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import damage, files_of, list_checkpoints
from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.checkpoints.publish import prepare
from parallax_runner.checkpoints.start import find_start
from parallax_runner.checkpoints.warm_start import Taken, WarmStart
from parallax_runner.checkpoints.warm_start_ops import WarmStartOps
from parallax_runner.launch import processes
from parallax_runner.launch.job import Job, LaunchSpec, thread_environment
from parallax_runner.launch.processes import RunResult
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.train.session_config import session_config
from parallax_runner.train.sessions import initialize
from tests.free_port import pick_free_ports
from tests.parallel.conftest import Forked
from tests.parallel.saving_worker import BLOCK_BYTES, PARTITIONED, TABLES, built
from tests.shared import shared
from tests.single.small_models import planned

pytestmark = pytest.mark.timeout(900)

# Every way but those in which a save must fail.
WAYS = ("copied", "waiting", "half", "elsewhere", "after")
RANKS = (3, pytest.param(2, id="more-2"))
MORE_KILLS = [("part", 0), ("merge", 0), ("verify", 1), ("verify", 0)]
Values = dict[str, np.ndarray]


def launch(folder: Path, ranks: int, orders: list[dict[str, Any]]) -> None:
    result = launched(folder, ranks, orders)
    told = "\n".join(result.failure.last_lines) if result.failure else ""
    assert result.status == "finished", f"{result.failure}\n{told}"


def launched(
    folder: Path, ranks: int, orders: list[dict[str, Any]], *, module: str = "tests.parallel.saving_worker"
) -> RunResult:
    for order in orders:
        (folder / order["name"]).mkdir()
    (folder / "cases.json").write_text(json.dumps([order | {"ranks": ranks} for order in orders]))
    job = Job(
        run_dir=folder,
        workers=ranks,
        servers=0,
        env=thread_environment(1),
        worker_module=module,
    )
    return processes.run(LaunchSpec(job, Forked()), on_message=lambda message: None)


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


@pytest.fixture(scope="session")
def restored(tmp_path_factory: pytest.TempPathFactory, saved: Callable[[int], Path]) -> Callable[[int], Path]:
    """The folder with what so many ranks have restored from the checkpoints that another number of ranks has
    written."""

    def of(ranks: int) -> Path:
        def restore(folder: Path) -> Path:
            starts = {way: prefix_in(saved(others_than(ranks)) / way) for way in WAYS[:2]}
            starts["unsliced"] = unsliced(tmp_path_factory.mktemp("unsliced"), starts["copied"])
            launch(folder, ranks, [{"name": name, "start": str(start)} for name, start in starts.items()])
            return folder

        return shared(tmp_path_factory, f"restored_by_{ranks}", restore)

    return of


def unsliced(folder: Path, prefix: Path) -> Path:
    """Writes the values of a checkpoint as TensorFlow's own Saver does, whole and without a sidecar."""
    found = values(prefix)
    with tf.Graph().as_default(), tf.Session() as session:
        names, tensors = zip(*found.items(), strict=True)
        session.run(
            tf.raw_ops.SaveV2(
                prefix=str(folder / "whole"),
                tensor_names=list(names),
                shape_and_slices=[""] * len(names),
                tensors=list(tensors),
            )
        )
    return folder / "whole"


def others_than(ranks: int) -> int:
    """Returns 2 for 3, and 3 for 2."""
    return 5 - ranks


@pytest.mark.parametrize("ranks", [2, pytest.param(3, id="more-3")])
@pytest.mark.parametrize("name", ["copied", "waiting", "unsliced"])
def test_ranks_restore_what_other_ranks_wrote(
    name: str, ranks: int, saved: Callable[[int], Path], restored: Callable[[int], Path]
) -> None:
    with np.load(restored(ranks) / name / "restored.npz") as file:
        way = "copied" if name == "unsliced" else name
        expect_same(dict(file), expected(saved(others_than(ranks)), way))


@pytest.mark.parametrize(("comm", "partitions"), [("local", 1), ("ps", 1), ("ps", 3)])
def test_any_mode_restores_what_ranks_wrote(
    comm: str, partitions: int, saved: Callable[[int], Path], cluster: str
) -> None:
    single = built()
    plan = planned(single, comm, workers=1, servers=2, partitions=partitions)
    distributed = rewrite_for_rank(single, plan, rank=0, seed=3)
    ops = CheckpointOps(distributed, BLOCK_BYTES)
    assert bool(ops.restoring.tables) == (partitions > 1)
    distributed.graph.finalize()
    folder = saved(3)
    with tf.Session(cluster if comm != "local" else "", graph=distributed.graph, config=session_config(1)) as session:
        initialize(session, distributed, ops, str(prefix_in(folder / "half")))
        expect_same(ops.snapshot(session), expected(folder, "half"))


def test_a_warm_start_takes_in_blocks_what_ranks_wrote(saved: Callable[[int], Path], cluster: str) -> None:
    single = built()
    plan = planned(single, "ps", workers=1, servers=2, partitions=3)
    distributed = rewrite_for_rank(single, plan, rank=0, seed=3)
    ops = CheckpointOps(distributed, BLOCK_BYTES)
    sources = {name: name for name in TABLES} | {"large/Momentum": "large"}
    dtypes = {name: dtype.name for name, (_, dtype) in TABLES.items()}
    taken = tuple(Taken(name, source, dtypes[source]) for name, source in sources.items())
    start = WarmStart(str(prefix_in(saved(3) / "half")), taken, (), ())
    warm = WarmStartOps(distributed, start, Path(), BLOCK_BYTES)
    in_blocks = [table.source for table in warm.restoring.tables]
    # A value of «half» cannot be read in slices, and «few» is smaller than a block.
    assert sorted(in_blocks) == sorted(["large", *TABLES.keys() - {"half", "few"}])
    distributed.graph.finalize()
    with tf.Session(cluster, graph=distributed.graph, config=session_config(1)) as session:
        initialize(session, distributed, ops, None, warm)
        found = ops.snapshot(session)
    wanted = expected(saved(3), "half")
    expect_same({name: found[name] for name in sources}, {name: wanted[source] for name, source in sources.items()})


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A worker and two servers of TensorFlow in this process; the worker's target."""
    addresses = [f"127.0.0.1:{port}" for port in pick_free_ports(3)]
    spec = tf.train.ClusterSpec({"worker": addresses[:1], "ps": addresses[1:]})
    jobs = [("worker", 0), ("ps", 0), ("ps", 1)]
    servers = [tf.train.Server(spec, job_name=job, task_index=task, config=session_config(1)) for job, task in jobs]
    yield servers[0].target


@pytest.mark.parametrize(
    ("phase", "victim"),
    [
        ("part", 1),
        ("publish", 0),
        *(pytest.param(*kill, id=f"more-{kill[0]}-{kill[1]}") for kill in MORE_KILLS),
    ],
)
def test_a_killed_rank_leaves_the_checkpoint_before(phase: str, victim: int, tmp_path: Path) -> None:
    result = launched(tmp_path, 2, [{"name": "killed", "start": None, "phase": phase, "victim": victim}])
    assert result.status == "failed"
    folder = tmp_path / "killed" / "ckpt"
    if phase != "publish":
        assert list_checkpoints(folder) == [folder / "model.ckpt-2"]
    notes = prepare(folder)
    start = find_start("auto", folder)
    # What was written in full is moved into place.
    assert start.prefix == folder / ("model.ckpt-5" if phase == "publish" else "model.ckpt-2")
    assert (notes, start.notes) == ((), ())
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]
    assert values(start.prefix).keys() >= TABLES.keys()
