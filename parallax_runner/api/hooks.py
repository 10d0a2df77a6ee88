"""Calls TensorFlow's session hooks in the same way as `tf.train.MonitoredSession`. Hooks get the values of the first
replica."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import tensorflow.compat.v1 as tf
from tensorflow.python.client.session import SessionInterface

from parallax_runner.api.fetches import Leaf, Translator, flatten

Values = list[list[Any]]


def see_to_nan(hooks: Sequence[tf.train.SessionRunHook]) -> bool:
    """Returns whether one of the script's hooks handles NaN losses."""
    return any(isinstance(hook, tf.train.NanTensorHook) for hook in hooks)


class Runner(Protocol):
    """The part of `parallel_run`'s session that hooks need. `values` returns a list for each leaf, with one value per
    replica."""

    graph: tf.Graph

    @property
    def translator(self) -> Translator:
        """Maps names in the script's graph to the worker's current graph."""
        ...

    def values(
        self, leaves: list[Leaf], feeds: Mapping[tf.Tensor, Any], options: Any = None, run_metadata: Any = None
    ) -> Values:
        """Runs the leaves without calling hooks."""
        ...


class HookSession(SessionInterface):
    """The session that is passed to hooks. Fetches return the values of the first replica. Feeds are passed to all
    replicas."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def graph(self) -> tf.Graph:
        """The single-device graph."""
        return self._runner.graph

    @property
    def sess_str(self) -> str:
        """Always empty, because no other session can connect to this session."""
        return ""

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """Behaves like `tf.Session.run` on one device."""
        leaves: list[Leaf] = []
        make = flatten(fetches, self._runner.translator.leaf, leaves)
        feeds = self._runner.translator.feeds_of_all(feed_dict)
        return make([value[0] for value in self._runner.values(leaves, feeds, options, run_metadata)])


class Hooks:
    """The hooks of a session. While a hook runs, the script's graph is the default graph."""

    def __init__(self, hooks: Sequence[tf.train.SessionRunHook], runner: Runner) -> None:
        self._hooks, self._runner = tuple(hooks), runner
        self._session = HookSession(runner)
        self.stop_requested = False

    def after_create(self) -> None:
        """Calls the hooks after the session has been created."""
        with self._runner.graph.as_default():
            for hook in self._hooks:
                hook.after_create_session(self._session, tf.train.Coordinator())

    def run(
        self,
        fetches: Any,
        leaves: list[Leaf],
        feed_dict: Mapping[Any, Any],
        feeds: Mapping[tf.Tensor, Any],
        options: Any,
        run_metadata: Any,
    ) -> Values:
        """Runs `leaves` together with the fetches, feeds and options that the hooks request. Returns the values of
        `leaves`, followed by the values that the hooks requested."""
        if not self._hooks:
            return self._runner.values(leaves, feeds, options, run_metadata)
        with self._runner.graph.as_default():
            context = tf.train.SessionRunContext(tf.train.SessionRunArgs(fetches, feed_dict, options), self._session)
            translator, all_leaves = self._runner.translator, list(leaves)
            fed: dict[tf.Tensor, Any] = {}
            makers: list[Callable[[Sequence[Any]], Any] | None] = []
            for hook in self._hooks:
                asked = hook.before_run(context) or tf.train.SessionRunArgs(None)
                fetched = asked.fetches is not None
                makers.append(flatten(asked.fetches, translator.leaf, all_leaves) if fetched else None)
                own = translator.feeds_of_all(asked.feed_dict)
                _refuse_fed_twice(hook, own, {**feeds, **fed})
                fed |= own
                if asked.options is not None:
                    options = _merged(options, asked.options)
                    run_metadata = run_metadata or tf.RunMetadata()
            values = self._runner.values(all_leaves, {**feeds, **fed}, options, run_metadata)
            first = [value[0] for value in values]
            for hook, make in zip(self._hooks, makers, strict=True):
                results = None if make is None else make(first)
                hook.after_run(context, tf.train.SessionRunValues(results, options, run_metadata))
            self.stop_requested |= context.stop_requested
            return values

    def end(self) -> None:
        """Calls the hooks' `end` methods. This method is called at the end of the script, unless the script failed."""
        with self._runner.graph.as_default():
            for hook in self._hooks:
                hook.end(self._session)


def _refuse_fed_twice(
    hook: tf.train.SessionRunHook, own: Mapping[tf.Tensor, Any], fed: Mapping[tf.Tensor, Any]
) -> None:
    """Raises RuntimeError if a hook feeds a tensor that is already in `fed`."""
    twice = [tensor.name for tensor in own if tensor in fed]
    if twice:  # the first replica has the same names as the script's graph
        name = min(twice, key=len)
        raise RuntimeError(f"{type(hook).__name__} feeds «{name}», but another hook or the script also feeds it")


def _merged(options: tf.RunOptions | None, asked: tf.RunOptions) -> tf.RunOptions:
    found = tf.RunOptions()
    if options is not None:
        found.CopyFrom(options)
    trace_level = max(found.trace_level, asked.trace_level)
    found.MergeFrom(asked)
    found.trace_level = trace_level
    return found
