"""A checkpoint is one device's view: logical names, full shapes, whatever the graph that wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.errors import CheckpointError
from parallax_runner.graph import edit
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.rewrite.distributed_graph import DistributedGraph, Piece
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.train import checkpoint
from parallax_runner.train.checkpoint import CheckpointOps, CheckpointSaver, check_fits, slice_spec
from parallax_runner.train.checkpoint_files import list_checkpoints, read_sidecar
from tests.single.small_models import ROWS, WIDTH, Features, captured, lookup_model, on_one_device, planned

SHAPES = {
    "table": [ROWS, WIDTH],
    "table/Adam": [ROWS, WIDTH],
    "table/Adam_1": [ROWS, WIDTH],
    "weights": [WIDTH],
    "weights/Adam": [WIDTH],
    "weights/Adam_1": [WIDTH],
    "global_step": [],
    "beta1_power": [],
    "beta2_power": [],
}


def single_of(pieces: int = 1) -> SingleDeviceGraph:
    return captured(lambda features: lookup_model(features, pieces=pieces), optimizer="adam")


class Rank:
    """One rank's graph with its checkpoint ops in a plain session, servers and all."""

    def __init__(self, single: SingleDeviceGraph, comm: str, *, partitions: int = 1, seed: int = 1) -> None:
        plan = planned(single, comm, workers=1, partitions=partitions)
        distributed = rewrite_for_rank(single, plan, rank=0, seed=seed)
        ops = CheckpointOps(distributed)
        graph = on_one_device(distributed.graph)
        self.session = tf.Session(graph=graph)
        self.ops: Any = object.__new__(CheckpointOps)
        self.ops.prefix, self.ops.save, self.ops.restore = (
            graph.as_graph_element(element.name) for element in (ops.prefix, ops.save, ops.restore)
        )
        graph.finalize()
        self.session.run(distributed.initialize.name)

    def values(self, folder: Path) -> dict[str, np.ndarray]:
        return self.ops.snapshot(self.session, folder / "snapshot" / "model")

    def save(self, prefix: Path) -> Path:
        self.session.run(self.ops.save, {self.ops.prefix: str(prefix)})
        return prefix

    def restore(self, prefix: Path) -> None:
        self.session.run(self.ops.restore, {self.ops.prefix: str(prefix)})


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("pieces", [1, 2, 3])
@pytest.mark.parametrize(("comm", "partitions"), [("local", 1), ("ps", 1), ("ps", 4), ("hybrid", 2)])
def test_names_and_shapes_are_the_models(tmp_path: Path, comm: str, partitions: int, pieces: int) -> None:
    prefix = Rank(single_of(pieces), comm, partitions=partitions).save(tmp_path / "model")
    assert tf.train.load_checkpoint(str(prefix)).get_variable_to_shape_map() == SHAPES


WAYS = [("local", 1, 1), ("ps", 4, 1), ("hybrid", 2, 3), ("local", 1, 2), ("mpi", 1, 1)]


@pytest.mark.parametrize("reader", WAYS)
@pytest.mark.parametrize("writer", [("ps", 4, 1), ("local", 1, 3)])
def test_any_graph_reads_what_any_graph_wrote(
    tmp_path: Path, writer: tuple[str, int, int], reader: tuple[str, int, int]
) -> None:
    first, second = (
        Rank(single_of(pieces), comm, partitions=partitions, seed=seed)
        for seed, (comm, partitions, pieces) in ((1, writer), (2, reader))
    )
    expected = first.values(tmp_path)
    assert not np.array_equal(second.values(tmp_path)["table"], expected["table"])
    second.restore(first.save(tmp_path / "model"))
    assert_equal(second.values(tmp_path), expected)


def test_rows_are_where_the_model_has_them(tmp_path: Path) -> None:
    """Values, not only shapes: a shard's rows under their own numbers."""
    whole = Rank(single_of(), "local").values(tmp_path)
    sharded = Rank(single_of(), "ps", partitions=4).values(tmp_path)
    np.testing.assert_array_equal(sharded["table"], whole["table"])


def test_a_snapshot_leaves_no_files(tmp_path: Path) -> None:
    Rank(single_of(), "local").values(tmp_path)
    assert not (tmp_path / "snapshot").exists()


def test_a_follower_restores_only_what_is_its_own() -> None:
    single = single_of()
    ranks = [rewrite_for_rank(single, planned(single, "hybrid"), rank=rank, seed=1) for rank in (0, 1)]
    restores = [edit.ancestors([CheckpointOps(rank).restore]) for rank in ranks]
    written = [{op.inputs[0].op.name for op in ops if op.type == "AssignVariableOp"} for ops in restores]
    assert {name for name in written[0] if "shard" in name} == {f"{name}/shard_0" for name in SHAPES if "table" in name}
    assert written[1] == {name for name in written[0] if "shard" not in name}


def test_restoring_another_shape_fails(tmp_path: Path) -> None:
    def taller(features: Features) -> tf.Tensor:
        return lookup_model(features, rows=ROWS + 1)

    prefix = Rank(captured(taller), "local").save(tmp_path / "model")
    with pytest.raises(tf.errors.InvalidArgumentError):
        Rank(captured(), "local").restore(prefix)


# The words for a piece.


def piece(offset: tuple[int, ...], shape: tuple[int, ...]) -> Piece:
    return Piece(handle=None, offset=offset, shape=shape, on_server=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "offset", "size", "spec"),
    [
        ((40000, 128), (10000, 0), (10000, 128), "40000 128 10000,10000:0,128"),
        ((40000, 128), (0, 0), (40000, 128), ""),
        ((7,), (3,), (4,), "7 3,4"),
        ((), (), (), ""),
        ((2, 3, 4), (1, 0, 0), (1, 3, 4), "2 3 4 1,1:0,3:0,4"),
    ],
)
def test_slices_in_tensorflows_words(
    shape: tuple[int, ...], offset: tuple[int, ...], size: tuple[int, ...], spec: str
) -> None:
    assert slice_spec(shape, piece(offset, size)) == spec


# What does not fit is said before any session.


def test_a_checkpoint_that_fits(tmp_path: Path) -> None:
    prefix = Rank(single_of(pieces=2), "local").save(tmp_path / "model")
    check_fits(prefix, single_of().variables)
    check_fits(prefix, single_of(pieces=3).variables)


def test_a_missing_variable_is_named(tmp_path: Path) -> None:
    prefix = Rank(captured(optimizer="momentum"), "local").save(tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"«(table|weights)/Adam».*ckpt\.resume=never"):
        check_fits(prefix, [v for v in single_of().variables if not v.name.startswith("beta")])


def test_another_shape_is_named(tmp_path: Path) -> None:
    def taller(features: Features) -> tf.Tensor:
        return lookup_model(features, rows=ROWS + 1)

    prefix = Rank(captured(), "local").save(tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"«table».*\[6, 2\].*\[7, 2\]"):
        check_fits(prefix, captured(taller).variables)


def test_variables_that_are_not_saved_need_not_be_there(tmp_path: Path) -> None:
    def counting(features: Features) -> tf.Tensor:
        tf.get_variable("count", [], tf.float64, collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
        return lookup_model(features)

    prefix = Rank(captured(), "local").save(tmp_path / "model")
    with_local = captured(counting)
    assert [variable.name for variable in with_local.variables if not variable.saved] == ["count"]
    check_fits(prefix, with_local.variables)


@pytest.mark.parametrize("content", [None, "rubbish"])
def test_files_that_cannot_be_read_are_a_checkpoint_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "model.ckpt-3.index").write_text(content)
    with pytest.raises(CheckpointError, match=r"model\.ckpt-3"):
        check_fits(tmp_path / "model.ckpt-3", captured().variables)


# When, and which are kept.


def saver(
    folder: Path, *, ops: Any = None, save_steps: int | None = None, save_secs: float | None = None, keep: int = 2
) -> CheckpointSaver:
    return CheckpointSaver(
        ops=ops,
        folder=folder,
        save_steps=save_steps,
        save_secs=save_secs,
        keep=keep,
        seed=3,
        fingerprint="f",
        mlflow_run_id=None,
    )


def test_due_by_steps(tmp_path: Path) -> None:
    made = saver(tmp_path, save_steps=10)
    made.start(0)
    assert [step for step in range(35) if made.is_due(step)] == [10, 20, 30]
    made.start(20)  # Resumed there.
    assert [step for step in range(20, 35) if made.is_due(step)] == [30]


def test_due_by_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    made = saver(tmp_path, save_secs=60)
    made.start(0)
    now[0] = 159
    assert not made.is_due(5)
    now[0] = 160
    assert made.is_due(6)
    made.start(6)
    assert not made.is_due(7)
    now[0] = 220
    assert made.is_due(8)


def test_never_due_without_an_interval(tmp_path: Path) -> None:
    made = saver(tmp_path)
    made.start(0)
    assert not any(made.is_due(step) for step in range(100))


def test_the_saver_keeps_the_newest_and_tensorflow_finds_it(tmp_path: Path) -> None:
    rank = Rank(single_of(), "ps", partitions=2)
    made = saver(tmp_path / "new" / "ckpt", ops=rank.ops, save_steps=1)
    for step in (5, 6, 10):
        prefix = made.save(rank.session, step=step, examples=8 * step)
    assert made.last_prefix == prefix == tmp_path / "new" / "ckpt" / "model.ckpt-10"
    assert made.last_step == 10
    assert [path.name for path in list_checkpoints(made.folder)] == ["model.ckpt-6", "model.ckpt-10"]
    assert sorted({path.name.split(".ckpt")[0] for path in made.folder.iterdir()}) == ["checkpoint", "model"]
    assert tf.train.latest_checkpoint(str(made.folder)) == str(prefix)
    found = read_sidecar(prefix)
    assert (found.step, found.examples, found.seed, found.fingerprint) == (10, 80, 3, "f")
    assert tf.train.load_checkpoint(str(made.folder)).get_tensor("table").shape == (ROWS, WIDTH)


def test_a_folder_that_is_moved_still_opens(tmp_path: Path) -> None:
    rank = Rank(single_of(), "local")
    saver(tmp_path / "old", ops=rank.ops).save(rank.session, step=1, examples=8)
    (tmp_path / "old").rename(tmp_path / "new")
    assert tf.train.latest_checkpoint(str(tmp_path / "new")) == str(tmp_path / "new" / "model.ckpt-1")


def test_distributed_graphs_name_each_variable_once() -> None:
    single = single_of(pieces=2)
    graph: DistributedGraph = rewrite_for_rank(single, planned(single, "ps", partitions=4), rank=0, seed=1)
    assert sorted(variable.name for variable in graph.variables) == sorted(SHAPES)
