"""Session hooks of TensorFlow in the session of `parallel_run`: one worker with two replicas, rows on two servers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from tests.single.api.cluster import Cluster

RATE = 0.5


class Seen(tf.train.SessionRunHook):
    """Notes what it is called for; feeds «scale», fetches a nest, stops after three steps."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def begin(self) -> None:
        with tf.name_scope("of_a_hook"):
            self.twice = tf.get_default_graph().get_tensor_by_name("loss:0") * 2

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.calls.append(("created", session.run("w:0").tolist(), type(coord)))

    def before_run(self, context: Any) -> Any:
        assert context.original_args.fetches == ["train", "loss:0"]
        assert context.session.graph is tf.get_default_graph()
        return tf.train.SessionRunArgs({"twice": self.twice, "more": ["w:0"]}, {"scale:0": 3.0})

    def after_run(self, context: Any, values: Any) -> None:
        self.calls.append(values.results["twice"])
        if len(self.calls) == 4:
            context.request_stop()

    def end(self, session: Any) -> None:
        self.calls.append(("end", session.run({"step": "global_step"})))


def build(scope: str) -> tf.Graph:
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float64, [], name="x")
        scale = tf.placeholder_with_default(tf.constant(1.0, tf.float64), [], name="scale")
        weight = tf.get_variable("w" if scope == "" else f"{scope}/w", [1], tf.float64, tf.zeros_initializer())
        loss = tf.reduce_sum(weight * x * scale, name="loss")
        tf.train.GradientDescentOptimizer(RATE).minimize(loss, tf.train.get_or_create_global_step(), name="train")
        graph.summary = tf.summary.scalar("loss", loss)
        graph.saver = tf.train.Saver(name="all_saver")
    return graph


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster()


def events_in(folder: Path) -> list[Any]:
    return [event for path in folder.glob("events*") for event in tf.train.summary_iterator(str(path))]


def test_hooks_of_tensorflow(cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    graph = build("")
    seen = Seen()
    with graph.as_default():
        hooks = [
            seen,
            tf.train.SummarySaverHook(1, output_dir=str(tmp_path / "summaries"), summary_op=graph.summary),
            tf.train.LoggingTensorHook({"the loss": "loss:0"}, every_n_iter=1),
            tf.train.StepCounterHook(1, output_dir=str(tmp_path / "counted")),
            tf.train.ProfilerHook(1, output_dir=str(tmp_path)),
            tf.train.FinalOpsHook({"last": "global_step:0"}),
            tf.train.CheckpointSaverHook(str(tmp_path / "saved"), save_steps=2, saver=graph.saver),
        ]
    logging.getLogger("tensorflow").propagate = True
    tf.logging.set_verbosity(tf.logging.INFO)
    try:
        (session,) = cluster.sessions(graph, replicas_per_worker=2, hooks=hooks)
        steps = 0
        while not session.should_stop() and steps < 10:
            values = session.run(["train", "loss:0"], {"x:0": [1.0, 3.0]})
            steps += 1
        session.close()
    finally:
        tf.logging.set_verbosity(tf.logging.ERROR)
    # A step moves w by -0.5 · 2 · 3, the mean of x being 2 and the hook's scale 3; hooks see the replica with x = 1.
    assert steps == 3
    assert values == [[None, None], [-6.0 * 3, -6.0 * 9]]
    created, *twice, end = seen.calls
    assert created == ("created", [0.0], tf.train.Coordinator)
    assert twice == [0.0, 2 * -9.0, 2 * -18.0]
    assert end == ("end", {"step": 3})
    summaries = [
        (event.step, value.simple_value) for event in events_in(tmp_path / "summaries") for value in event.summary.value
    ]
    assert summaries == [(1, 0.0), (2, -9.0), (3, -18.0)]
    assert "the loss = -9" in caplog.text
    assert any(event.summary.value for event in events_in(tmp_path / "counted"))
    assert {path.name for path in tmp_path.glob("timeline-*.json")} == {"timeline-2.json", "timeline-3.json"}
    assert "traceEvents" in (timeline := (tmp_path / "timeline-3.json").read_text()) and '"ph": "X"' in timeline
    assert hooks[5].final_ops_values == {"last": 3}
    reader = tf.train.load_checkpoint(str(tmp_path / "saved" / "model.ckpt-3"))
    assert reader.get_tensor("w").tolist() == [-9.0]


def test_a_hook_that_fails_and_one_that_feeds_what_the_script_feeds(cluster: Cluster) -> None:
    graph = build("failing")
    (session,) = cluster.sessions(graph, replicas_per_worker=2, hooks=[tf.train.NanTensorHook("loss:0")])
    with pytest.raises(tf.train.NanLossDuringTrainingError):
        session.run("train", {"x:0": [float("nan"), 1.0]})
    gentle = tf.train.NanTensorHook("loss:0", fail_on_nan_loss=False)
    (session,) = cluster.sessions(build("ending"), replicas_per_worker=2, hooks=[gentle])
    session.run("train", {"x:0": [float("nan"), 1.0]})
    assert session.should_stop()
    graph = build("feeding")
    (session,) = cluster.sessions(graph, replicas_per_worker=2, hooks=[tf.train.FeedFnHook(lambda: {"x:0": 1.0})])
    assert session.run("loss:0") == [0.0, 0.0]
    with pytest.raises(RuntimeError, match="FeedFnHook feeds «x:0»"):
        session.run("loss:0", {"x:0": [1.0, 1.0]})
