"""Whole runs with data in the graph, hosts from a file, or an unavailable protocol."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.integration.runs import Run, launch

EXAMPLES, BATCH, STEPS = 24, 3, 4
# The gradient of a weight counts how often the step has read its example.
MODEL = f"""
import os

import tensorflow.compat.v1 as tf

from parallax_runner import shard


def build(features, optimizer):
    names = tf.data.Dataset.from_tensor_slices([os.path.join(os.environ["SHARD_TEST_FILES"], f) for f in ("a", "b")])
    lines = names.interleave(tf.data.TextLineDataset, cycle_length=2)
    lines = lines.map(lambda line: tf.strings.to_number(line, tf.int64))
    examples = shard.shard(lines).repeat().batch({BATCH}, drop_remainder=True)
    weights = tf.get_variable("weights", [{EXAMPLES}], initializer=tf.zeros_initializer())
    loss = tf.reduce_sum(weights * tf.reduce_sum(tf.one_hot(tf.data.MAKER(examples).get_next(), {EXAMPLES}), 0))
    return {{"loss": loss, "train_op": optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())}}
"""


def train(cwd: Path, monkeypatch: pytest.MonkeyPatch, maker: str, *arguments: str) -> Run:
    for name, start in (("a", 0), ("b", 1)):
        (cwd / name).write_text("".join(f"{number}\n" for number in range(start, EXAMPLES, 2)))
    monkeypatch.setenv("SHARD_TEST_FILES", str(cwd))
    (cwd / "sharded.py").write_text(MODEL.replace("MAKER", maker))
    (cwd / "myconf" / "model").mkdir(parents=True)
    (cwd / "myconf" / "model" / "sharded.yaml").write_text("_target_: sharded.build\n")
    options = ("data=linear", "optimizer=gradient_descent", "optimizer.learning_rate=1", "tracking=off")
    return launch("--config-dir", "myconf", "model=sharded", f"train.steps={STEPS}", *options, *arguments, cwd=cwd)


def test_two_workers_see_every_example_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hosts.txt").write_text("# two slots\nlocalhost: 0,1\n")
    hosts = ("cluster=hosts", "cluster.resource_info=hosts.txt")
    run = train(tmp_path, monkeypatch, "make_one_shot_iterator", "comm=mpi", *hosts).expect_success()
    assert run.summary["workers"] == 2
    trained = tf.train.load_checkpoint(str(run.ckpt_dir)).get_tensor("weights")
    # The mean over two ranks; 2 x 3 x 4 = 24 examples in all.
    np.testing.assert_array_equal(trained, np.full(EXAMPLES, -0.5))


def test_the_reference_has_the_same_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(tmp_path, monkeypatch, "make_initializable_iterator", "comm=ps", "action=verify").expect_success()
    assert run.summary["workers"] == 2
    assert run.summary["status"] == "finished"


def test_a_protocol_that_there_is_not_is_refused_before_anything_starts(tmp_path: Path) -> None:
    run = launch("model=simple", "comm=ps", "comm.ps.protocol=grpc+verbs", "tracking=off", cwd=tmp_path)
    assert run.exit_status == 2
    refusal = (
        "comm.ps.protocol=grpc+verbs (command line): this TensorFlow build does not support it; expected one of: grpc"
    )
    assert refusal in run.stderr
    run.expect_nothing_started()
