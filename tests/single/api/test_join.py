"""A worker that built another graph than the first process says so, and names the op."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.api.join import check_same
from parallax_runner.errors import PlanError
from parallax_runner.graph.fingerprint import FILE_NAME, Outline
from parallax_runner.graph.script_graph import capture_script
from parallax_runner.graph.single_device_graph import SingleDeviceGraph


def built(by: int) -> SingleDeviceGraph:
    with tf.Graph().as_default() as graph:
        weights = tf.get_variable("weights", [2])
        loss = tf.reduce_sum(weights * tf.constant(float(by), name="process"))
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    return capture_script(graph)


def test_the_op_is_named(tmp_path: Path) -> None:
    first, worker = built(1), built(2)
    Outline.of(first.meta_graph.graph_def).save(tmp_path / FILE_NAME)
    plan: Any = SimpleNamespace(fingerprint=first.fingerprint)
    check_same(built(1), plan, tmp_path, rank=1)
    with pytest.raises(
        PlanError, match=r"worker 1 built a different graph .*«process» \(Const\): its attribute «value»"
    ):
        check_same(worker, plan, tmp_path, rank=1)


def test_an_outline_that_is_cut_off_hides_nothing(tmp_path: Path) -> None:
    first, path = built(1), tmp_path / FILE_NAME
    Outline.of(first.meta_graph.graph_def).save(path)
    whole, plan = path.read_bytes(), SimpleNamespace(fingerprint=first.fingerprint)
    damaged = bytearray(whole)
    damaged[12:40] = b"\xff" * 28
    for content in (whole[: len(whole) // 2], bytes(damaged), b"", b"no gzip"):
        path.write_bytes(content)
        with pytest.raises(PlanError, match=r"than the process that started first\. A script must"):
            check_same(built(2), cast(Any, plan), tmp_path, rank=1)


def test_without_the_outline_it_is_refused_all_the_same(tmp_path: Path) -> None:
    plan: Any = SimpleNamespace(fingerprint=built(1).fingerprint)
    with pytest.raises(PlanError, match=r"than the process that started first\. A script must"):
        check_same(built(2), plan, tmp_path, rank=1)
