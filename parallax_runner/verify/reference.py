"""Computes a distributed step in the simplest way: one process, one session for each rank, and NumPy between them.

This module is an executable definition of a correct step. It shares no code with `rewrite`. Each rank's session
contains the captured graph twice, unchanged. The first copy computes raw gradients. In the second copy, each raw
gradient is a placeholder to which the aggregate over all ranks is fed. The second copy's update ops act on the first
copy's variables. `halves` determines which values the second copy takes from the first copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.data.shares import SHARE
from parallax_runner.errors import ParallaxError
from parallax_runner.graph.devices import without_devices
from parallax_runner.graph.iterators import input_initializers
from parallax_runner.graph.seeds import stream_draws
from parallax_runner.graph.single_device_graph import (
    Divisor,
    DivisorKind,
    Gradient,
    RankSum,
    SingleDeviceGraph,
    Variable,
)
from parallax_runner.verify.aggregate import mean, merge
from parallax_runner.verify.insert_together import RankKeys, joined
from parallax_runner.verify.pieces import from_pieces, to_pieces
from parallax_runner.verify.split_step import split

Values = Mapping[str, np.ndarray]


class Reference:
    """Trains a graph on `ranks` ranks in this process.

    Sparse gradients are averaged over the ranks if `average_sparse`, otherwise summed. Dense gradients are averaged.
    `seeds` takes the graph and a rank, and returns the graph that this rank runs, for example with different seeds.
    Without `seeds`, all ranks draw the same numbers. `gpu_options` limits the GPUs that all ranks' sessions use.
    `config` replaces the configuration of these sessions.

    Variables must be set by `load` or `initialize` before the first step.
    """

    def __init__(
        self,
        single: SingleDeviceGraph,
        *,
        ranks: int,
        average_sparse: bool,
        seeds: Callable[[tf.GraphDef, int], tf.GraphDef] | None = None,
        gpu_options: tf.GPUOptions | None = None,
        config: tf.ConfigProto | None = None,
    ) -> None:
        if ranks < 1:
            raise ValueError(f"ranks={ranks}, expected at least 1")
        self._single = single
        self._average_sparse = average_sparse
        if ranks > 1:
            _refuse_sums_of_draws(single)
        graph_def = without_devices(single.meta_graph.graph_def)
        config = config or tf.ConfigProto(allow_soft_placement=True, gpu_options=gpu_options)
        self._ranks = [_Rank(single, seeds(graph_def, rank) if seeds else graph_def, config) for rank in range(ranks)]
        self._prepared = False

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def load(self, values: Values) -> None:
        """Sets every saved variable on all ranks. As in a checkpoint, `values` maps the full names of variables to
        unpartitioned arrays.

        The first call also runs the initializers of local variables, tables and input pipelines. Raises ParallaxError
        if a variable is missing or unknown, or has the wrong shape.
        """
        pieces = to_pieces(self._single.variables, values)
        for rank in self._ranks:
            rank.assign(pieces)
        self._prepare(variable.initializer for variable in self._single.variables if not variable.saved)

    def follow(self, values: Values) -> None:
        """Sets variables to the values of a run that has done the same steps. A variable that differs between the ranks
        keeps its values, because each rank of the run also has its own value. `values` has the form that `load` takes.
        """
        pieces = to_pieces(self._single.variables, values)
        chief, *others = (rank.read(one for one in self._single.variables if one.saved) for rank in self._ranks)
        alike = {
            name: value
            for name, value in pieces.items()
            if all(_identical(chief[name], other[name]) for other in others)
        }
        for rank in self._ranks:
            rank.assign(alike)

    def initialize(self) -> None:
        """Runs the graph's own initializers in rank 0's session, and copies the values to the other ranks."""
        chief, *others = self._ranks
        chief.run_ops(variable.initializer for variable in self._single.variables)
        initial = chief.read(self._single.variables)
        for rank in others:
            rank.assign(initial)
        self._prepare(())

    def step(self, batches: Sequence[Values]) -> list[float]:
        """Runs one training step. batches[r] is the batch of rank r, by feature name. Returns the loss of each rank,
        times its share of the step's examples."""
        if len(batches) != len(self._ranks):
            raise ParallaxError(f"got {len(batches)} batches for {len(self._ranks)} ranks, expected one batch per rank")
        before = self._ranks[0].read(self._single.merged)
        shares = [float(batch.get(SHARE, 1.0)) for batch in batches]
        fed = [(rank, rank.feeds(batch)) for rank, batch in zip(self._ranks, batches, strict=True)]
        _insert_keys(fed, shares)
        divisors = self._summed(batches, shares, self._divisors(batches, shares))
        firsts = [
            rank.first_half(batch, divided) for rank, batch, divided in zip(self._ranks, batches, divisors, strict=True)
        ]
        weighed = [_weighed(self._single.gradients, first, share) for first, share in zip(firsts, shares, strict=True)]
        aggregated = _aggregate(self._single.gradients, weighed, average_sparse=self._average_sparse)
        losses = [rank.second_half({**first, **aggregated}) for rank, first in zip(self._ranks, firsts, strict=True)]
        for rank, feeds in fed:
            rank.keys.end_step(rank.session, feeds)
        self._merge_declared(before, shares)
        return [share * loss if share else 0.0 for share, loss in zip(shares, losses, strict=True)]

    def _divisors(self, batches: Sequence[Values], shares: Sequence[float]) -> list[dict[str, Any]]:
        """Returns the values of the marked divisors on each rank, by tensor name. The mean over the ranks is then the
        sum of all examples, divided by the divisor of all examples."""
        found: list[dict[str, Any]] = [{} for _ in self._ranks]
        marked = self._single.decided_divisors
        if len(self._ranks) == 1 or not marked:
            return found
        names = [one.tensor for one in marked]
        own = [rank.values_of(names, batch, {}) for rank, batch in zip(self._ranks, batches, strict=True)]
        for one in marked:
            total = _divisor_of_all(one, [values[one.tensor] for values in own], shares)
            for values, share in zip(found, shares, strict=True):
                values[one.tensor] = total * share / len(self._ranks) if share else 1.0
        return found

    def _summed(
        self, batches: Sequence[Values], shares: Sequence[float], fed: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Returns the values to feed on each rank: `fed`, and what the model asks to sum over the ranks. A sum can
        depend on earlier sums."""
        if len(self._ranks) == 1:
            return fed
        for mark in self._single.rank_sums:
            own = [
                rank.values_of([mark.tensor], batch, known)[mark.tensor]
                for rank, batch, known in zip(self._ranks, batches, fed, strict=True)
            ]
            for known, total in zip(fed, _sums_of_ranks(mark, own, shares), strict=True):
                known[mark.tensor] = total
        return fed

    def _merge_declared(self, before: Values, shares: Sequence[float]) -> None:
        """Merges variables that declare «sum» or «mean», after a step that began with the values `before`. `shares` are
        the ranks' shares of the step's examples."""
        if not before:
            return
        after = [rank.read(self._single.merged) for rank in self._ranks]
        merged = {}
        for variable in self._single.merged:
            old = np.asarray(before[variable.name])
            changes = [np.asarray(values[variable.name]) - old for values in after]
            merged[variable.name] = old + _merged_change(variable, changes, shares)
        for rank in self._ranks:
            rank.assign({name: value.astype(np.asarray(before[name]).dtype) for name, value in merged.items()})

    def values(self) -> dict[str, np.ndarray]:
        """Returns rank 0's saved variables, including slots, with full names and full shapes, in graph order."""
        saved = [variable for variable in self._single.variables if variable.saved]
        return from_pieces(saved, self._ranks[0].read(saved))

    def close(self) -> None:
        """Closes the sessions."""
        for rank in self._ranks:
            rank.session.close()

    def _prepare(self, initializers: Iterable[str]) -> None:
        if not self._prepared:
            inputs, late = input_initializers(self._single.meta_graph)
            names = [*initializers, *inputs]
            for rank in self._ranks:
                rank.run_ops(names)
                rank.run_ops(late)
            self._prepared = True


class _Rank:
    """One rank's graph (both copies) and session."""

    def __init__(self, single: SingleDeviceGraph, graph_def: tf.GraphDef, config: tf.ConfigProto) -> None:
        self._single = single
        self._graph = tf.Graph()
        graph_def = _with_names_of_resources(graph_def)
        with self._graph.as_default():
            tf.import_graph_def(graph_def, name="")
            self._halves = split(self._graph, train_op=single.train_op, loss=single.loss, gradients=single.gradients)
            self.keys = RankKeys(self._graph)
            self._fed = self._placeholders()
            self._train_op, self._loss = self._second_copy(graph_def)
            self._accessors = {variable.name: self._accessor(variable) for variable in single.variables}
        self.session = tf.Session(graph=self._graph, config=config)
        self._graph.finalize()

    def first_half(self, batch: Values, divisors: Values) -> dict[str, Any]:
        """Returns raw gradients, frozen values and the loss by tensor name: all values that the second half needs.
        `divisors` are the values of divisors by tensor name."""
        if set(batch) != set(self._single.features):
            raise ParallaxError(f"the batch has the features {sorted(batch)}, expected {sorted(self._single.features)}")
        names = [*_boundary(self._single.gradients), *self._halves.frozen]
        if not self._halves.late_loss:
            names.append(self._single.loss)
        finished = [self._graph.get_operation_by_name(name) for name in self._halves.finished]
        feeds = self.feeds(batch) | dict(divisors)
        fetched, _ = self.session.run(({name: name for name in names}, finished), feeds)
        return fetched

    def feeds(self, batch: Values) -> dict[str, Any]:
        """Returns the values of placeholders for a batch."""
        return {self._single.features[feature]: value for feature, value in batch.items()}

    def values_of(self, names: Iterable[str], batch: Values, known: Values) -> dict[str, Any]:
        """Returns the values of tensors of the first half, some of which are `known`."""
        feeds = self.feeds(batch) | dict(known)
        return self.session.run({name: name for name in names}, feeds)

    def second_half(self, values: Mapping[str, Any]) -> float:
        """Runs the update ops on aggregated gradients and frozen values. Returns the loss."""
        feeds = {placeholder: values[name] for name, placeholder in self._fed.items()}
        if self._halves.late_loss:
            _, loss = self.session.run((self._train_op, self._loss), feeds)
        else:
            self.session.run(self._train_op, feeds)
            loss = values[self._single.loss]
        return float(loss)

    def assign(self, pieces: Values) -> None:
        """Sets variables from values under the variables' own names."""
        accessors = [(self._accessors[name], value) for name, value in pieces.items()]
        self.session.run(
            [assign for (_, assign, _), _ in accessors], {value: array for (value, _, _), array in accessors}
        )

    def read(self, variables: Iterable[Variable]) -> dict[str, np.ndarray]:
        """Returns the values of variables under the variables' own names."""
        return self.session.run({variable.name: self._accessors[variable.name][2] for variable in variables})

    def run_ops(self, names: Iterable[str]) -> None:
        """Runs ops of the first copy."""
        self.session.run([self._graph.get_operation_by_name(name) for name in names])

    def _placeholders(self) -> dict[str, tf.Tensor]:
        """Returns the placeholders of the second copy, by the name of the tensor that each replaces."""
        placeholders = {}
        for name in self._halves.frozen:
            tensor = self._graph.get_tensor_by_name(name)
            placeholders[name] = tf.placeholder(tensor.dtype, tensor.shape)
        for gradient in self._single.gradients:
            for name in filter(None, (gradient.values, gradient.indices)):
                tensor = self._graph.get_tensor_by_name(name)
                # A merged sparse gradient has a different number of rows.
                shape = tensor.shape if gradient.indices is None else [None, *tensor.shape[1:]]
                placeholders[name] = tf.placeholder(tensor.dtype, shape)
        return placeholders

    def _second_copy(self, graph_def: tf.GraphDef) -> tuple[tf.Operation, tf.Tensor]:
        """Imports the graph again, and returns its train op and its loss."""
        copy = tf.GraphDef()
        copy.CopyFrom(graph_def)
        for node in copy.node:
            # The handles of the first copy must determine the devices of the second copy's ops.
            node.attr.pop("_class", None)
        handles = {name: self._graph.get_tensor_by_name(name) for name in self._halves.handles}
        # Control edges from ops of the first half are not needed, because the first half has finished when the second
        # half starts.
        satisfied = dict.fromkeys((f"^{name}" for name in self._halves.finished), tf.constant(0))
        train_op, loss = tf.import_graph_def(
            copy,
            name="second_half",
            input_map={**self._fed, **handles, **satisfied},
            return_elements=[self._single.train_op, self._single.loss],
        )
        return train_op, loss

    def _accessor(self, variable: Variable) -> tuple[tf.Tensor, tf.Operation, tf.Tensor]:
        """Returns a placeholder, the op that assigns it to the variable, and a tensor that reads the variable."""
        handle = self._graph.get_tensor_by_name(f"{variable.name}:0")
        value = tf.placeholder(variable.dtype, variable.shape)
        assign = tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        return value, assign, tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.as_dtype(variable.dtype))


def _insert_keys(fed: Sequence[tuple[_Rank, Mapping[str, Any]]], shares: Sequence[float]) -> None:
    """Inserts the new keys of all ranks on each rank. Each rank has its batch."""
    keys = joined([rank.keys.of(rank.session, feeds) for rank, feeds in fed], shares)
    for rank, feeds in fed:
        rank.keys.insert(rank.session, feeds, keys)


def _refuse_sums_of_draws(single: SingleDeviceGraph) -> None:
    """Raises ParallaxError if a sum over the ranks depends on a stateful random draw, because each evaluation of a sum
    would draw again."""
    names = [one.tensor.partition(":")[0] for one in single.rank_sums]
    if names and (drawn := stream_draws(single.meta_graph.graph_def, names)):
        raise ParallaxError(
            f"«{drawn[0].name}» ({drawn[0].op}) draws numbers for a sum over the replicas, so this step cannot be "
            "repeated: draw with a seed as an argument (tf.random.stateless_…, keras.random)"
        )


def _identical(one: np.ndarray, other: np.ndarray) -> bool:
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()


def _with_names_of_resources(graph_def: tf.GraphDef) -> tf.GraphDef:
    """Returns a copy in which every variable has its own resource. Otherwise, variables without a `shared_name` would
    share one resource."""
    named = tf.GraphDef()
    named.CopyFrom(graph_def)
    for node in named.node:
        if node.op == "VarHandleOp" and not node.attr["shared_name"].s:
            node.attr["shared_name"].s = node.name.encode()
    return named


def _boundary(gradients: Iterable[Gradient]) -> list[str]:
    return [name for gradient in gradients for name in (gradient.values, gradient.indices) if name]


def _sums_of_ranks(mark: RankSum, own: Sequence[np.ndarray], shares: Sequence[float]) -> list[np.ndarray]:
    """Returns the sum for each rank, from the ranks' own values and shares. Gradients count with their shares, and a
    rank's share multiplies its sum again later."""
    if not mark.is_gradient:
        total = sum(np.asarray(value) for value, share in zip(own, shares, strict=True) if share)
        return [np.asarray(total) for _ in own]
    weighed = sum(np.asarray(value) * share for value, share in zip(own, shares, strict=True) if share)
    return [np.asarray(weighed / share if share else np.zeros_like(own[0])) for share in shares]


def _divisor_of_all(divisor: Divisor, own: Sequence[float], shares: Sequence[float]) -> float:
    """Returns the divisor of all examples of a step, from each rank's own value and share."""
    if divisor.kind == DivisorKind.ONE:
        return 1.0
    return sum(value for value, share in zip(own, shares, strict=True) if share)


def _weighed(gradients: Iterable[Gradient], first: Values, share: float) -> Values:
    """Returns the raw gradients of a rank, times its share of the step's examples. A rank without examples has computed
    an example of another rank, whose gradient counts as 0."""
    if share == 1.0:
        return first
    found = dict(first)
    for gradient in gradients:
        values = np.asarray(first[gradient.values])
        found[gradient.values] = values * values.dtype.type(share) if share else np.zeros_like(values)
    return found


def _merged_change(variable: Variable, changes: Sequence[np.ndarray], shares: Sequence[float]) -> np.ndarray:
    """Returns the change of a variable that declares «sum» or «mean», from each rank's change and share."""
    if variable.aggregation == "mean":
        weighed = [share * change for share, change in zip(shares, changes, strict=True)]
        return np.asarray(sum(weighed) / len(changes))
    return np.asarray(sum(change for share, change in zip(shares, changes, strict=True) if share))


def _aggregate(
    gradients: Iterable[Gradient], firsts: Sequence[Values], *, average_sparse: bool
) -> dict[str, np.ndarray]:
    """Returns aggregated gradients by tensor name, from the raw gradients of each rank."""
    aggregated: dict[str, np.ndarray] = {}
    for gradient in gradients:
        if gradient.indices is None:
            aggregated[gradient.values] = mean([first[gradient.values] for first in firsts])
        else:
            pieces = [(first[gradient.indices], first[gradient.values]) for first in firsts]
            aggregated[gradient.indices], aggregated[gradient.values] = merge(pieces, average=average_sparse)
    return aggregated
