"""A snapshot is of one moment, the end of a step, although its values travel while the next steps run."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import list_checkpoints
from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.checkpoints.saver import CheckpointSaver
from parallax_runner.errors import CheckpointError
from parallax_runner.graph import edit
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.train.session_config import session_config
from tests.free_port import pick_free_ports
from tests.single.small_models import BATCH, OPTIMIZERS, WIDTH, Features, captured, planned

ROWS = 50_000  # enough for values to be on their way while steps run
STEPS = 12


def large_model(features: Features) -> tf.Tensor:
    """[BATCH]: a lookup in «table», sparse, times a product with «weights», dense; both large."""
    table = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
    weights = tf.get_variable("weights", [ROWS, WIDTH], tf.float64)
    return tf.reduce_sum(tf.nn.embedding_lookup(table, features["ids"]) * tf.reduce_sum(weights, axis=0), axis=1)


def fed(graph: DistributedGraph, step: int) -> dict[tf.Tensor, np.ndarray]:
    draw = np.random.default_rng(step)
    batch = {"ids": draw.integers(0, ROWS, BATCH), "x": draw.normal(size=(BATCH, WIDTH)), "y": draw.normal(size=BATCH)}
    return {graph.features[0][name]: value for name, value in batch.items() if name in graph.features[0]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A worker and a server of TensorFlow in this process; the worker's target."""
    addresses = [f"127.0.0.1:{port}" for port in pick_free_ports(2)]
    spec = tf.train.ClusterSpec({"worker": addresses[:1], "ps": addresses[1:]})
    servers = [tf.train.Server(spec, job_name=job, config=session_config(1)) for job in ("worker", "ps")]
    yield servers[0].target


class Chief:
    """Rank 0, alone, of a large model."""

    def __init__(self, comm: str, optimizer: str, target: str, *, partitions: int = 1) -> None:
        single = captured(large_model, optimizer=optimizer)
        plan = planned(single, comm, workers=1, servers=1, partitions=partitions)
        self.distributed = rewrite_for_rank(single, plan, rank=0, seed=1)
        self.ops = CheckpointOps(self.distributed)
        self.distributed.graph.finalize()
        self.session = tf.Session(target, graph=self.distributed.graph, config=session_config(1))
        self.session.run(self.distributed.initialize)

    def step(self, number: int) -> None:
        self.session.run(self.distributed.train_op, fed(self.distributed, number))


WAYS = [("local", 1, optimizer) for optimizer in OPTIMIZERS]
WAYS += [("ps", 3, optimizer) for optimizer in ("adagrad", "adam", "gradient_descent")]


@pytest.mark.parametrize(("comm", "partitions", "optimizer"), WAYS)
def test_steps_that_run_meanwhile_change_nothing(comm: str, partitions: int, optimizer: str, cluster: str) -> None:
    chief = Chief(comm, optimizer, cluster if comm == "ps" else "", partitions=partitions)
    with chief.session:
        for first in (0, STEPS):
            for step in range(first, first + 2):
                chief.step(step)
            expected = chief.ops.snapshot(chief.session)
            expected = {name: value.copy() for name, value in expected.items()}
            read: list[list[np.ndarray]] = []
            reader = threading.Thread(target=lambda read=read: read.append(chief.ops.read(chief.session)))
            reader.start()
            chief.ops.wait_until_read(chief.session)
            for step in range(first + 2, first + STEPS):
                chief.step(step)
            reader.join()
            for part, value in zip(chief.ops.slices, read[0], strict=True):
                np.testing.assert_array_equal(value, expected[part.name][part.where], err_msg=part.name)
            moved = chief.ops.snapshot(chief.session)
            assert all(not np.array_equal(moved[name], expected[name]) for name in ("table", "weights", "global_step"))


@pytest.mark.parametrize(("comm", "partitions"), [("local", 1), ("ps", 3)])
def test_the_loop_waits_for_every_variable(comm: str, partitions: int) -> None:
    single = captured()
    ops = CheckpointOps(
        rewrite_for_rank(single, planned(single, comm, workers=1, partitions=partitions), rank=0, seed=1)
    )
    assert len(ops.values) == len(ops.slices) > 3
    assert {value.op for value in ops.values} <= edit.ancestors([ops.tell_read])


def saver_of(chief: Chief, folder: Path) -> CheckpointSaver:
    return CheckpointSaver(
        ops=chief.ops,
        folder=folder,
        save_steps=3,
        save_secs=None,
        keep=10,
        seed=1,
        fingerprint="f",
        run_id=lambda: None,
    )


def test_files_hold_the_moment_of_saving(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Saved after every third step without a pause between; each file holds its own step's values."""
    chief = Chief("local", "adam", "")
    saver = saver_of(chief, tmp_path)
    expected = {}
    with chief.session:
        saver.start(0)
        saver.warm_up(chief.session)
        for step in range(1, STEPS + 1):
            chief.step(step)
            saver.raise_if_failed()
            if saver.is_due(step):
                expected[step] = {name: value.copy() for name, value in chief.ops.snapshot(chief.session).items()}
                saver.save(chief.session, step=step, examples=step)
        assert saver.finish(chief.session, step=STEPS, examples=STEPS) == tmp_path / f"model.ckpt-{STEPS}"
    assert [path.name for path in list_checkpoints(tmp_path)] == [f"model.ckpt-{step}" for step in (3, 6, 9, 12)]
    for step, values in expected.items():
        reader = tf.train.load_checkpoint(str(tmp_path / f"model.ckpt-{step}"))
        for name, value in values.items():
            np.testing.assert_array_equal(reader.get_tensor(name), value, err_msg=f"{name} after {step}")
    said = re.findall(
        r"checkpoint of step (\d+): written in \d+\.\d\d s; training waited \d+ ms", capfd.readouterr().out
    )
    assert said == ["3", "6", "9", "12"]


def test_variables_that_cannot_be_read_end_the_loop_and_do_not_stop_it(tmp_path: Path) -> None:
    chief = Chief("local", "momentum", "")
    saver = saver_of(chief, tmp_path)
    with tf.Session(graph=chief.distributed.graph) as uninitialized:
        saver.save(uninitialized, step=3, examples=3)
        saver.close()
        with pytest.raises(
            CheckpointError, match=r"step 3 could not be written.*could not be read.*no earlier checkpoint"
        ):
            saver.raise_if_failed()
        with pytest.raises(CheckpointError):
            saver.finish(uninitialized, step=4, examples=4)
    assert list(tmp_path.iterdir()) == []
    chief.session.close()
