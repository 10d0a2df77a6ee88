"""The session that `parallel_run` returns. Feeds and fetches refer to the single-device graph."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import tensorflow.compat.v1 as tf

from parallax_runner.api.fetch_check import FetchCheck
from parallax_runner.api.fetches import Leaf, Translator, flatten
from parallax_runner.api.hooks import Hooks, Values
from parallax_runner.api.script_segments import ScriptSegments
from parallax_runner.launch.control.activity import Activity, Kind
from parallax_runner.plan.plan import Plan
from parallax_runner.train.step_runner import StepRunner


class Session:
    """Runs a worker's graph. A fetch that needs an update runs a training step."""

    def __init__(
        self,
        graph: tf.Graph,
        plan: Plan,
        segments: ScriptSegments,
        runner: StepRunner,
        hooks: Sequence[tf.train.SessionRunHook] = (),
    ) -> None:
        self.graph, self.plan, self.runner = graph, plan, runner
        self._segments, self._steps = segments, segments.steps
        segments.begin_if_due(runner)
        self._fetch_check = FetchCheck(plan, self._steps, runner.distributed)
        self._hooks = Hooks(hooks, self)
        self._closed = False
        self._queues = _start_queue_runners(graph, runner)
        self._hooks.after_create()

    @property
    def translator(self) -> Translator:
        """Maps names in the single-device graph to this worker's current graph."""
        return self._segments.translator

    @property
    def tf_session(self) -> tf.Session:
        """The session of this worker's own graph."""
        return self.runner.session

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Sequence[Any]] | None = None,
        feed: Mapping[Any, Sequence[Any]] | None = None,
        options: Any = None,
        run_metadata: Any = None,
    ) -> Any:
        """Behaves like `tf.Session.run`, but each fetched or fed value is a list with one value per replica.

        Raises TrainingError if a fetch or feed is not possible. Also raises the errors that `tf.Session.run` raises.
        """
        if self._closed:
            raise RuntimeError("the session is closed")
        given = {**(feed_dict or {}), **(feed or {})}
        leaves: list[Leaf] = []
        make = flatten(fetches, self.translator.leaf, leaves)
        feeds = self.translator.feeds(given)
        return make(self._hooks.run(fetches, leaves, given, feeds, options, run_metadata))

    def values(
        self, leaves: list[Leaf], feeds: Mapping[tf.Tensor, Any], options: Any = None, run_metadata: Any = None
    ) -> Values:
        """Returns a list for each leaf, with one value per replica. Runs a step if one of the leaves needs an
        update."""
        needs = [name for leaf in leaves for name in leaf.needs]
        updates = self._steps.updates_needed(needs)
        is_whole = updates == self._steps.updates
        if updates and not is_whole:
            self._fetch_check.check_part(updates)
        tensors = [tensor for leaf in leaves for replica in leaf.tensors for tensor in replica]
        self._fetch_check.check_fetches(needs, tensors, updates=updates)
        ops = self._ops(leaves, is_whole=is_whole)
        if updates:
            fetched = self._run_step([tensors, ops], dict(feeds), options, run_metadata, is_whole=is_whole)[0]
        else:
            fetched = self.tf_session.run([tensors, ops], dict(feeds), options=options, run_metadata=run_metadata)[0]
        each = iter(fetched)
        return [_values_of(leaf, each) for leaf in leaves]

    def should_stop(self) -> bool:
        """Returns whether to stop, because a hook or the driver has requested a stop or because all steps are done."""
        return self._closed or self._hooks.stop_requested or self.runner.is_last()

    def close(self) -> None:
        """Ends the training: calls the `end` methods of the hooks. The chief also saves a checkpoint of the last
        step."""
        if not self._closed:
            self._hooks.end()
            self._closed = True
            if self.runner.losses:
                self.runner.report()
            self.runner.peers.close()
            self.runner.end()
            self._queues.request_stop()
            self.tf_session.close()

    def give_up(self) -> None:
        """After a failure, waits until the current checkpoint is written. Does not call the hooks' `end` methods and
        does not save another checkpoint."""
        if not self._closed:
            self.runner.give_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    def _run_step(
        self, fetches: Any, feeds: dict[tf.Tensor, Any], options: Any, run_metadata: Any, *, is_whole: bool
    ) -> Any:
        """Runs one step and returns the values of `fetches`. `is_whole` is true if the fetches run all updates.

        Raises SystemExit(0) if no step is left.
        """
        runner = self.runner
        if runner.is_last():
            raise SystemExit(0)  # the script tries to run more steps than the configuration allows
        waits_at_end = runner.distributed.leave is not None
        if waits_at_end:
            # A worker that does not wait for other workers cannot know which step is the last. The last step is saved
            # when all workers have left.
            runner.save_if_due()
        runner.peers.wait_to_start(runner.step + 1)
        started_secs = time.perf_counter()
        values = runner.run(
            fetches, feeds, started_secs=started_secs, is_whole=is_whole, options=options, run_metadata=run_metadata
        )
        runner.report_if_due()
        if not waits_at_end:
            runner.save_if_due()
        if self._segments.begin_if_due(runner):
            self._fetch_check = FetchCheck(self.plan, self._steps, runner.distributed)
        runner.control.doing = Activity(Kind.SCRIPT, runner.step)
        return values

    def _ops(self, leaves: list[Leaf], *, is_whole: bool) -> list[tf.Operation]:
        """Returns the ops to run with the tensors: the train op if the fetch runs all updates, and the fetched ops that
        are not part of the train op."""
        distributed = self.runner.distributed
        names: list[str] = []
        for leaf in leaves:
            if leaf.op is not None and not (is_whole and leaf.op in self._steps.whole):
                names += self._fetch_check.without_initial_values(leaf.op, has_trained=self._has_trained)
        whole = [distributed.train_op] if is_whole else []
        return whole + [
            distributed.graph.get_operation_by_name(prefix + name) for name in names for prefix in distributed.prefixes
        ]

    @property
    def _has_trained(self) -> bool:
        return self.runner.step > self.runner.first_step


def _values_of(leaf: Leaf, fetched: Iterator[Any]) -> list[Any]:
    """Returns the value of a leaf in each replica. Takes the values of the leaf's tensors from `fetched`."""
    return [leaf.make([next(fetched) for _ in replica]) for replica in leaf.tensors]


def _start_queue_runners(graph: tf.Graph, steps: StepRunner) -> tf.train.Coordinator:
    """Starts the queue runners of the script's graph once for each replica. Returns the coordinator that stops the
    queue runners."""
    distributed, coordinator = steps.distributed, tf.train.Coordinator()
    with distributed.graph.as_default():
        for runner in graph.get_collection(tf.GraphKeys.QUEUE_RUNNERS):
            for prefix in distributed.prefixes:
                own = tf.train.QueueRunner.from_proto(runner.to_proto(), import_scope=prefix.rstrip("/"))
                own.create_threads(steps.session, coordinator, daemon=True, start=True)
    return coordinator
