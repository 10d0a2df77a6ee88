"""Changes a worker's graph between two steps of a script, so that a search can try other numbers of shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.api.fetches import Translator
from parallax_runner.api.steps import Steps
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.train.segment import Segment
from parallax_runner.train.step_runner import StepRunner

# A variable outlives a session without a shared name. TensorFlow refuses the name for a one-shot iterator, which
# therefore begins again in the next session.
WITHOUT_NEW_NAMES = ("VarHandleOp", "OneShotIterator")
NextSegment = Callable[[tf.Session, int, list[float]], Segment | None]


@dataclass
class ScriptSegments:
    """The segments of a script's training.

    `translator` belongs to the worker's current graph. `next_segment` asks the driver how the training continues, and
    is None if the training is a single segment. The current segment ends after step `until`, or never if `until` is
    None.
    """

    graph: tf.Graph
    steps: Steps
    translator: Translator
    next_segment: NextSegment | None = None
    until: int | None = None

    @classmethod
    def of(cls, graph: tf.Graph, steps: Steps, distributed: DistributedGraph) -> ScriptSegments:
        """Returns the only segment of a script that has built `graph`."""
        return cls(graph, steps, _translator(graph, steps, distributed))

    def translate(self, distributed: DistributedGraph) -> None:
        """Makes the translator for another graph of this worker, which is not finalized yet."""
        keep_inputs(self.steps.graph, distributed)
        self.translator = _translator(self.graph, self.steps, distributed)

    def begin_if_due(self, runner: StepRunner) -> bool:
        """If the current segment has ended, waits until all ranks and the driver have agreed on the next segment, and
        begins that segment. Returns whether the runner now has another graph.

        If the driver has ended the training, the runner's step becomes its last step.
        """
        if self.next_segment is None or runner.step != self.until or runner.is_last():
            return False
        runner.pause()
        segment = self.next_segment(runner.session, runner.step, runner.throughput.step_secs)
        if segment is None:
            runner.last_step = runner.step
            return False
        runner.throughput.begin_again()
        self.until = segment.until
        if segment.graph is None:
            return False
        runner.go_on_with(segment.graph)
        return True


def keep_inputs(captured: tf.Graph, distributed: DistributedGraph) -> None:
    """Makes the iterators, lookup tables and similar resources of the script's graph outlive a session, so that the
    next session continues with the next batch. Without a shared name, TensorFlow deletes them with the session."""
    unnamed = [op.name for op in captured.get_operations() if _ends_with_session(op)]
    for prefix in distributed.prefixes:
        for name in unnamed:
            own = distributed.graph.get_operation_by_name(prefix + name)
            own._set_attr("shared_name", tf.AttrValue(s=own.name.encode()))


def _ends_with_session(op: tf.Operation) -> bool:
    if op.type in WITHOUT_NEW_NAMES or "shared_name" not in op.node_def.attr:
        return False
    return not op.get_attr("shared_name") and op.outputs[0].dtype == tf.resource


def _translator(graph: tf.Graph, steps: Steps, distributed: DistributedGraph) -> Translator:
    with distributed.graph.as_default(), tf.device(distributed.device):
        return Translator(graph, steps.graph, distributed)
