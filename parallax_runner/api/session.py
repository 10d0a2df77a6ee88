"""The session that `parallel_run` returns: fed and fetched in terms of the single-device graph."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import tensorflow.compat.v1 as tf

from parallax_runner.api.fetches import Leaf, Translator, flatten
from parallax_runner.api.steps import Steps
from parallax_runner.errors import TrainingError
from parallax_runner.graph import edit
from parallax_runner.plan.plan import Plan
from parallax_runner.profile.record import StepProfiler
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.train.checkpoint_saver import CheckpointSaver
from parallax_runner.train.loop import Control
from parallax_runner.train.throughput import Throughput


@dataclass
class Session:
    """Runs a worker's graph. A fetch that needs an update runs a step, on all workers together.

    `last_step` ends the process after as many steps, None never; `saver` is the chief's.
    """

    graph: tf.Graph
    distributed: DistributedGraph
    plan: Plan
    steps: Steps
    translator: Translator
    tf_session: tf.Session
    control: Control
    profiler: StepProfiler
    first_step: int
    last_step: int | None
    log_every: int
    knows_loss: bool
    saver: CheckpointSaver | None
    hooks: Sequence[tf.train.SessionRunHook] = ()
    _step: int = -1
    _closed: bool = False
    _stop: bool = False
    _losses: list[float] = field(default_factory=list)
    _throughput: Throughput = field(default_factory=Throughput)
    _ckpt_path: str | None = None

    def __post_init__(self) -> None:
        self._step = self.first_step
        if self.saver:
            self.saver.start(self._step)
            self.saver.warm_up(self.tf_session)

    def run(
        self,
        fetches: Any,
        feed_dict: Any = None,
        feed: Any = None,
        options: Any = None,
        run_metadata: Any = None,
    ) -> Any:
        """Like `tf.Session.run`; each value of a fetch, and of a feed, is a list with one for each replica.

        Raises TrainingError where a fetch cannot be served.
        """
        if self._closed:
            raise RuntimeError("the session is closed")
        leaves: list[Leaf] = []
        make = flatten(fetches, self.translator.leaf, leaves)
        feeds = self.translator.feeds(feed_dict if feed is None else {**(feed_dict or {}), **feed})
        if not self.hooks:
            return make(self._values(leaves, feeds, options, run_metadata))
        return make(self._with_hooks(fetches, leaves, feeds, options, run_metadata))

    def should_stop(self) -> bool:
        """Whether a hook has asked to stop, the driver wants the run to end, or all steps are done."""
        return self._closed or self._stop or self._is_last()

    def close(self) -> None:
        """Ends the training: hooks come to their end, and the chief saves the last step."""
        if self._closed:
            return
        for hook in self.hooks:
            hook.end(HookSession(self))
        self._closed = True
        if self._losses:
            self._report()
        if self.saver:
            self.control.doing = f"saving step {self._step}"
            self.saver.finish(self.tf_session, step=self._step, examples=0)
            self._ckpt_path = str(self.saver.last_prefix)
        self.tf_session.close()

    def give_up(self) -> None:
        """Waits for the checkpoint that is being written, where a run fails."""
        if self.saver and not self._closed:
            self.saver.close()

    def outcome(self) -> dict[str, Any]:
        """What the summary needs to know of a session that is closed."""
        figures = self._throughput.figures() if self._throughput.step_secs else {}
        return figures | {"steps": self._step, "first_step": self.first_step, "ckpt_path": self._ckpt_path}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    def _with_hooks(self, fetches: Any, leaves: list[Leaf], feeds: dict[tf.Tensor, Any], *traced: Any) -> list[Any]:
        arguments = tf.train.SessionRunArgs(fetches)
        context = tf.train.SessionRunContext(arguments, HookSession(self))
        all_leaves, fed = list(leaves), dict(feeds)
        makers: list[Callable[[Sequence[Any]], Any] | None] = []
        for hook in self.hooks:
            asked = hook.before_run(context)
            if asked is None or asked.fetches is None:
                makers.append(None)
                continue
            makers.append(flatten(asked.fetches, self.translator.leaf, all_leaves))
            for key, value in (asked.feed_dict or {}).items():
                fed |= self.translator.feeds({key: [value] * len(self.distributed.prefixes)})
        values = self._values(all_leaves, fed, *traced)
        first = [None if value is None else value[0] for value in values]
        for hook, make in zip(self.hooks, makers, strict=True):
            results = None if make is None else make(first)
            hook.after_run(context, tf.train.SessionRunValues(results=results, options=None, run_metadata=traced[1]))
        self._stop |= context.stop_requested
        return values[: len(leaves)]

    def _values(self, leaves: list[Leaf], feeds: dict[tf.Tensor, Any], options: Any, run_metadata: Any) -> list[Any]:
        """For each leaf the list of its values in the replicas."""
        updates = self.steps.updates_needed(name for leaf in leaves for name in leaf.needs)
        is_whole = updates == self.steps.updates
        if updates and not is_whole and self.plan.servers:
            left_out = sorted(self.steps.updates - updates)[0]
            raise TrainingError(
                f"this fetch runs only some of the updates, and not «{left_out}»: with variables on servers a step is "
                "all of them; fetch all train ops together, or choose run_option='MPI'"
            )
        for leaf in leaves if not updates else ():
            for name in leaf.needs:
                found = self.steps.aggregate_needed(name)
                if found is not None:
                    raise TrainingError(
                        f"«{name}» needs «{found}», which is made from the gradients of all workers: fetch it together "
                        "with the train op"
                    )
        whole = [self.distributed.train_op] if is_whole else []
        own = [op for leaf in leaves if leaf.op and not (updates and is_whole) for op in self._ops(leaf.op)]
        flat = [tensor for leaf in leaves for replica in leaf.tensors for tensor in replica]
        for tensor in flat:
            self._check_reachable(tensor)
        if updates:
            values = iter(self._run_step(flat, own + whole, feeds, options, run_metadata, is_whole))
        else:
            fetched = self.tf_session.run([flat, own], feeds, options=options, run_metadata=run_metadata)
            values = iter(fetched[0])
        return [[leaf.make([next(values) for _ in replica]) for replica in leaf.tensors] for leaf in leaves]

    def _ops(self, name: str) -> list[tf.Operation]:
        return [self.distributed.graph.get_operation_by_name(prefix + name) for prefix in self.distributed.prefixes]

    def _check_reachable(self, tensor: tf.Tensor) -> None:
        """Refuses what only the chief's step has, or what is spread over servers; to run it would wait for ever."""
        if not self.plan.servers:
            return
        graph = self.distributed.graph
        for op in edit.ancestors([tensor.op], control=False):
            moved = op.name in self._moved
            if moved or (self.distributed.rank > 0 and op.type.endswith("TakeGradient")):
                raise TrainingError(
                    f"«{tensor.name}» needs «{op.name}», which is done on the servers: fetch what is not, such as the "
                    "variables, or choose run_option='MPI'"
                )
        assert graph is tensor.graph

    @property
    def _moved(self) -> frozenset[str]:
        """Ops of the single-device graph of which the servers do a copy each."""
        if not hasattr(self, "_moved_names"):
            names = {op.name for op in self.distributed.graph.get_operations()}
            self._moved_names = frozenset(
                op.name
                for op in self.distributed.graph.get_operations()
                if f"{op.name}/shard_0" in names and op.type != "VarHandleOp"
            )
        return self._moved_names

    def _run_step(
        self,
        tensors: list[tf.Tensor],
        ops: list[tf.Operation],
        feeds: dict[tf.Tensor, Any],
        options: Any,
        run_metadata: Any,
        is_whole: bool,
    ) -> list[Any]:
        if self._is_last():
            raise SystemExit(0)  # the script goes on, and its run has done what it should
        step = self._step + 1
        self.control.doing = f"step {step}"
        more = [self.distributed.loss] if self.knows_loss else []
        more += [self.distributed.sent_bytes] if is_whole else []
        wanted = self.profiler.wants(step) and run_metadata is None
        if wanted:
            run_metadata = tf.RunMetadata()
            options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        started = time.perf_counter()
        values, told, _ = self.tf_session.run([tensors, more, ops], feeds, options=options, run_metadata=run_metadata)
        self._throughput.add(time.perf_counter() - started, float(told[-1]) if is_whole else 0.0)
        if wanted:
            self.profiler.write(step, run_metadata)
        self._step = self.control.step = step
        self._losses.append(float(told[0]) if self.knows_loss else math.nan)
        if step % self.log_every == 0 or step == self.first_step + 1 or self._is_last():
            self._report()
        if self.saver:
            self.saver.raise_if_failed()
            if self.saver.is_due(step):
                self.control.doing = f"saving step {step}"
                self.saver.save(self.tf_session, step=step, examples=0)
        self.control.doing = f"the script, after step {step}"
        return list(values)

    def _is_last(self) -> bool:
        """As the command line's loop: the chief chooses the last step, which no rank can be beyond."""
        control = self.control
        if self.distributed.rank == 0 and control.stop_requested.is_set() and control.last_step is None:
            control.announce_last_step(self._step + 1)
        agreed = control.last_step is not None and self._step >= control.last_step
        return agreed or (self.last_step is not None and self._step >= self.last_step)

    def _report(self) -> None:
        step_secs = self._throughput.step_secs[-len(self._losses) :]
        self.control.report("progress", step=self._step, losses=self._losses, step_secs=step_secs)
        self._losses = []


class HookSession:
    """What a session hook gets: values of the first replica, as on one device; hooks are not called."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.graph = session.graph

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """Like `tf.Session.run` on one device."""
        session = self._session
        leaves: list[Leaf] = []
        make = flatten(fetches, session.translator.leaf, leaves)
        replicas = len(session.distributed.prefixes)
        feeds = session.translator.feeds({key: [value] * replicas for key, value in (feed_dict or {}).items()})
        return make([value[0] for value in session._values(leaves, feeds, options, run_metadata)])
