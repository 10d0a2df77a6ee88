"""A checkpoint is one device's view: logical names, full shapes, whatever the graph that wrote it."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import Sidecar, sidecar_path
from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps, check_fits
from parallax_runner.checkpoints.restore import Restore
from parallax_runner.checkpoints.slices import slice_spec
from parallax_runner.checkpoints.writer import CheckpointWriter
from parallax_runner.errors import CheckpointError
from parallax_runner.graph import edit
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.rewrite.distributed_graph import DistributedGraph, Piece
from parallax_runner.rewrite.passes import rewrite_for_rank
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
        self.ops.slices, self.ops.is_chief, self.ops.is_collective = ops.slices, ops.is_chief, ops.is_collective
        self.ops.values = [graph.as_graph_element(value.name) for value in ops.values]
        assert not ops.restoring.tables
        self.ops.restoring = object.__new__(Restore)
        self.ops.restoring.tables = []
        for name in ("prefix", "others"):
            setattr(self.ops.restoring, name, graph.as_graph_element(getattr(ops.restoring, name).name))
        for name in ("step", "tell_read", "tell_failed", "release_mutex", "wait"):
            setattr(self.ops, name, graph.as_graph_element(getattr(ops, name).name))
        graph.finalize()
        self.session.run(distributed.initialize.name)

    def values(self) -> dict[str, np.ndarray]:
        return self.ops.snapshot(self.session)

    def save(self, prefix: Path) -> Path:
        writer = CheckpointWriter(self.ops.slices)
        writer.write(prefix, self.ops.read(self.session))
        self.ops.wait_until_read(self.session)
        writer.read_back(prefix)
        return prefix

    def restore(self, prefix: Path) -> None:
        self.ops.restore(self.session, prefix)


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert expected and set(found) == set(expected)
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
    expected = first.values()
    assert not np.array_equal(second.values()["table"], expected["table"])
    second.restore(first.save(tmp_path / "model"))
    assert_equal(second.values(), expected)


def test_rows_are_where_the_model_has_them() -> None:
    """Values, not only shapes: a shard's rows under their own numbers."""
    whole = Rank(single_of(), "local").values()
    sharded = Rank(single_of(), "ps", partitions=4).values()
    np.testing.assert_array_equal(sharded["table"], whole["table"])


def test_a_snapshot_is_what_is_written(tmp_path: Path) -> None:
    rank = Rank(single_of(pieces=3), "ps", partitions=2)
    reader = tf.train.load_checkpoint(str(rank.save(tmp_path / "model")))
    assert_equal({name: reader.get_tensor(name) for name in SHAPES}, rank.values())


def test_a_follower_restores_only_what_is_its_own() -> None:
    single = single_of()
    ranks = [rewrite_for_rank(single, planned(single, "hybrid"), rank=rank, seed=1) for rank in (0, 1)]
    restores = [edit.ancestors([CheckpointOps(rank).restoring.others]) for rank in ranks]
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
    return Piece(handle=None, offset=offset, shape=shape, is_shared=True)  # type: ignore[arg-type]


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
    written = Rank(single_of(pieces=2), "local")
    prefix = written.save(tmp_path / "model")
    for pieces in (1, 3):
        check_fits(prefix, single_of(pieces).variables)
        reader = Rank(single_of(pieces), "local", seed=2)
        reader.restore(prefix)
        assert_equal(reader.values(), written.values())


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


def test_another_dtype_is_named(tmp_path: Path) -> None:
    single = captured()
    prefix = Rank(single, "local").save(tmp_path / "model")
    narrower = [dataclasses.replace(variable, dtype="float32") for variable in single.variables]
    with pytest.raises(CheckpointError, match=r"has dtype float64, but dtype float32 in.*ckpt\.resume=never"):
        check_fits(prefix, narrower)


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    prefix = Rank(captured(), "local").save(tmp_path / "model.ckpt-5")
    sidecar = Sidecar(step=5, examples=5, seed=1, fingerprint="f", tracker_run_id=None, numbering="one")
    for numbering, fits in (("one", True), ("", True), ("two", False)):
        sidecar_path(prefix).write_text(sidecar.text())
        with (
            nullcontext()
            if fits
            else pytest.raises(CheckpointError, match=r"a different vocabulary.*ckpt\.resume=never")
        ):
            check_fits(prefix, captured().variables, numbering=numbering)
    sidecar_path(prefix).write_text(dataclasses.replace(sidecar, numbering="").text())
    check_fits(prefix, captured().variables, numbering="two")  # as one of an earlier version


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


def test_distributed_graphs_name_each_variable_once() -> None:
    single = single_of(pieces=2)
    graph: DistributedGraph = rewrite_for_rank(single, planned(single, "ps", partitions=4), rank=0, seed=1)
    assert sorted(variable.name for variable in graph.variables) == sorted(SHAPES)
