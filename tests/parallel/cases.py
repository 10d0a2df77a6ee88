"""A case of the equivalence matrix: its graph, plan and batches."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.classify import classify
from parallax_runner.data.shares import SHARE, rows_of, share_of
from parallax_runner.graph.capture import capture
from parallax_runner.graph.mixed_precision import with_short_products
from parallax_runner.graph.parts.accumulated import accumulated
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.uneven_steps import with_batch_size, with_share
from parallax_runner.plan.comm_options import CommOptions, Compression, Lookahead, PsOptions
from parallax_runner.plan.plan import Plan
from parallax_runner.planning import placement
from parallax_runner.planning.choose import Choice
from parallax_runner.planning.plan_request import PlanRequest
from parallax_runner.planning.planner import make_plan
from tests.keras_updates import Optimizer, clip_each, clip_together
from tests.parallel.case_models import (
    BATCH,
    MODELS,
    ROWS,
    WIDTH,
    by_largest,
    decay_rows,
    joined,
    keep_padding,
    update_every_third_step,
)
from tests.parallel.configured import CONFIGURED

# Models whose steps compute their gradients in this number of passes.
PARTS = {
    "in_2_parts": 2,
    "in_4_parts": 4,
    "statistics_in_2_parts": 2,
    "sampled_in_4_parts": 4,
    "short_products_in_2_parts": 2,
}
STEPS, SERVERS, SEED = 10, 2, 7
# Per worker: at least the largest number of replicas, and of devices that a model names.
CPU_DEVICES = 3

OPTIMIZERS = {
    "gradient_descent": lambda: tf.train.GradientDescentOptimizer(0.05),
    "momentum": lambda: tf.train.MomentumOptimizer(0.05, 0.9),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.05),
    "adam": lambda: tf.train.AdamOptimizer(0.01),
    "rmsprop": lambda: tf.train.RMSPropOptimizer(0.01, momentum=0.5),
    "ftrl": lambda: tf.train.FtrlOptimizer(0.05, l1_regularization_strength=0.001),
}

# Written by hand, as Keras' optimizers write their updates.
KERAS = {
    "keras_momentum": Optimizer("momentum"),
    "keras_adam": Optimizer("adam"),
    "keras_amsgrad": Optimizer("amsgrad", clip_each),
    "keras_adam_clipped": Optimizer("adam", clip_together),
    "keras_adamw": Optimizer("adamw", averages=True),
    "keras_ftrl": Optimizer("ftrl"),
    "keras_adagrad": Optimizer("adagrad"),
    "keras_rmsprop": Optimizer("rmsprop", clip_each),
    "keras_adadelta": Optimizer("adadelta"),
}


@dataclass(frozen=True)
class Case:
    """One cell of the matrix.

    `ranks` are processes, with `replicas` copies of the graph in each. `user_parts` is the number of pieces of the
    user's own partitioner, 1 without one. In step `spoilt_step` the last replica's data has a NaN, and on_nan=skip is
    set. With `reroute`, such as "other.allgather", sparse variables with that word in their own names, without those of
    scopes, use another route. With `recuts`, such as "1_3", variables are recut into these numbers of pieces during the
    run, each time in a new session. With `splits_dense`, dense variables on servers are cut too, although they are
    small. `rows` says whether the next step touches some, all or none of the rows of a step. If `uneven`, ranks have
    different numbers of examples, in some steps none. A `kind` other than «graph» is captured from plain Keras, or from
    a step with a tape; `model` and `optimizer` are then those of `keras_models` and `keras_optimizers`.
    """

    comm: str = "hybrid"
    optimizer: str = "adagrad"
    gradients: str = "both"
    clip: bool = False
    ranks: int = 2
    partitions: int = 1
    variables: str = "resource"
    user_parts: int = 1
    average_sparse: bool = True
    fault: str | None = None
    model: str = "plain"
    spoilt_step: int | None = None
    use_allgatherv: bool = False
    replicas: int = 1
    local_aggregation: bool = True
    replicate_variables: bool = False
    among_servers: bool = True
    between: bool = True
    reroute: str | None = None
    compression: str = "off"
    recuts: str = ""
    kind: str = "graph"
    lookahead: str = "on"
    rows: str = "some"
    splits_dense: bool = False
    uneven: bool = False

    @property
    def name(self) -> str:
        """The name in pytest and in file names. The initial values are drawn from it, and bounds of cases with 16
        bits were found with these draws, so `lookahead="on"` keeps its earlier name."""
        named = dataclasses.replace(self, lookahead="1") if self.lookahead == "on" else self
        fields = dataclasses.astuple(named)
        return "-".join(str(value) for value in (*fields[:-1], *(["uneven"] if self.uneven else [])))

    def single(self, *, batches: int = 1) -> SingleDeviceGraph:
        """Captures the graph, which is the same in every process, for a rank's batch or for `batches` batches at
        once."""
        if self.kind != "graph":
            return _keras_models().single(self)
        exact = self.exact(batches=batches)
        # The other ops are in float64, so that what two devices sum in another order is rounded to the same 16 bits.
        return with_short_products(exact, full=tf.float64) if self.model.startswith("short_products") else exact

    def exact(self, *, batches: int) -> SingleDeviceGraph:
        """Captures the graph without products in 16 bits."""
        whole = self._captured(None if self.uneven else batches * BATCH, batches)
        if self.model not in PARTS:
            return with_share(whole) if self.uneven else whole
        parts = PARTS[self.model]
        return accumulated(whole, self._captured(batches * BATCH // parts, batches), parts)

    def whole(self, *, batches: int) -> SingleDeviceGraph:
        """Captures the graph of one pass over `batches` batches, also for a case with several passes."""
        return self._captured(batches * BATCH, batches)

    def _captured(self, size: int | None, batches: int) -> SingleDeviceGraph:
        shapes = {"ids": ((size,), "int32"), "x": ((size, WIDTH), "float64"), "y": ((size,), "float64")}
        if self.variables == "reference":
            tf.disable_resource_variables()
        try:
            return capture(functools.partial(self._build, batches=batches), shapes, seed=SEED)
        finally:
            tf.enable_resource_variables()

    def plan(self, single: SingleDeviceGraph) -> Plan:
        """Returns the plan of this case."""
        plan = self._plan(single, None)
        if self.reroute is None:
            return plan
        part, _, route = self.reroute.partition(".")
        sparse = [v.name for v in plan.variables if v.gradient == "sparse"]
        chosen = {name for name in sparse if part in name.rpartition("/")[2]}
        assert chosen
        routes = {v.name: route if v.name in chosen else v.route for v in plan.variables}
        return self._plan(single, Choice(routes=routes, reasons=dict.fromkeys(routes, "a test")))

    def plans(self, single: SingleDeviceGraph) -> list[Plan]:
        """Returns the plans of its segments, which have about as many steps each."""
        numbers = [int(number) for number in self.recuts.split("_") if number]
        return [self.plan(single), *(dataclasses.replace(self, partitions=each).plan(single) for each in numbers)]

    def _plan(self, single: SingleDeviceGraph, choice: Choice | None) -> Plan:
        request = PlanRequest(
            comm=self.comm,
            variables=tuple(classify(with_batch_size(single, BATCH) if self.uneven else single)),
            fingerprint=single.fingerprint,
            workers=self.ranks,
            servers=SERVERS,
            replicas_per_worker=self.replicas,
            options=CommOptions(
                average_sparse=self.average_sparse,
                ps=PsOptions(
                    local_aggregation=self.local_aggregation,
                    replicate_variables=self.replicate_variables,
                    boundary_among_servers=self.among_servers,
                    boundary_between_workers_and_servers=self.between,
                ),
                use_allgatherv=self.use_allgatherv,
                compression=Compression(self.compression),
                lookahead=Lookahead(self.lookahead),
            ),
            partitions=self.partitions,
            choice=choice,
        )
        if not self.splits_dense:
            return make_plan(request)
        with mock.patch.multiple(placement, LARGEST_SHARE=0.01, SMALLEST_PIECE_BYTES=1):
            plan = make_plan(request)
        assert any(variable.gradient == "dense" and len(variable.shards) == SERVERS for variable in plan.variables)
        return plan

    def batch(self, step: int, rank: int) -> dict[str, np.ndarray]:
        """Returns the batch of a replica."""
        if not self.uneven:
            return self._whole_batch(step, rank)
        replicas = self.ranks * self.replicas
        step_examples = (replicas * BATCH - 1, replicas * BATCH, 1, replicas + 1)[step % 4]
        examples = len(rows_of(rank, step_examples, replicas))
        whole = self._whole_batch(step, rank if examples else 0)
        found = {name: array[: examples or 1] for name, array in whole.items()}
        return found | {SHARE: np.asarray(share_of(examples, step_examples, replicas))}

    def _whole_batch(self, step: int, rank: int) -> dict[str, np.ndarray]:
        """Returns a batch with few rows, so ids repeat within a rank and across ranks."""
        if self.kind != "graph":
            return _keras_models().batch(self, step, rank)
        draw = np.random.default_rng([SEED, step, rank])
        found = {
            "ids": draw.choice(self._ids(step), BATCH).astype(np.int32),
            "x": draw.normal(size=(BATCH, WIDTH)),
            "y": draw.normal(size=BATCH),
        }
        if step == self.spoilt_step and rank == self.ranks * self.replicas - 1:
            found["y"][0] = np.nan
        return found

    def _ids(self, step: int) -> Sequence[int]:
        """Returns the ids from which a step's ids are drawn; models also look up rows by 2 * id + 1."""
        return {"some": range(ROWS), "all": (2, 5, 11), "none": ((0, 1), (2, 5))[step % 2]}[self.rows]

    def validation_batch(self, rank: int) -> dict[str, np.ndarray]:
        """Returns a rank's validation batch for a Keras model; each rank has a different number of examples."""
        return {name: array[rank:] for name, array in self._whole_batch(STEPS, rank).items()}

    def _build(self, features: dict[str, tf.Tensor], *, batches: int) -> dict[str, Any]:
        losses = [self.loss(part) for part in self._parts(features)]
        loss = tf.add_n(losses) / len(losses)
        global_step = tf.train.get_or_create_global_step()
        if self.model == "decay_after":
            # Every rank needs its own step number, although only updates on servers lead to it.
            loss *= tf.minimum(tf.cast(global_step, tf.float64) * 0.2, 1.0)
        optimizer = self._optimizer()
        pairs = optimizer.compute_gradients(loss)
        if self.optimizer in KERAS and batches > 1:  # one device that replaces several ranks merges repeated ids
            pairs = [(tf.convert_to_tensor(gradient), variable) for gradient, variable in pairs]
        if len(losses) > 1:
            variables = [variable for _, variable in pairs]
            parts = zip(*(tf.gradients(each, variables) for each in losses), strict=True)
            pairs = [(joined(self, list(each), v), v) for each, v in zip(parts, variables, strict=True)]
        if self.model.startswith("accumulated"):
            return {"loss": loss, "train_op": update_every_third_step(self, pairs, optimizer, global_step)}
        if self.model == "row_decay":
            pairs = [(decay_rows(gradient, variable), variable) for gradient, variable in pairs]
        if self.model == "normalized":
            pairs = [(by_largest(gradient), variable) for gradient, variable in pairs]
        if self.clip:
            clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 0.3)
            pairs = [(gradient, variable) for gradient, (_, variable) in zip(clipped, pairs, strict=True)]
        train_op = optimizer.apply_gradients(pairs, global_step=global_step)
        if self.model == "decay_after":
            with tf.control_dependencies([train_op]):
                train_op = tf.group(*[variable.assign_sub(0.01 * variable) for _, variable in pairs])
        if self.model == "padding":
            with tf.control_dependencies([train_op]):
                train_op = tf.group(*[keep_padding(v) for g, v in pairs if isinstance(g, tf.IndexedSlices)])
        if self.model == "chained":
            train_op = self._train_another(features, after=train_op)
        return {"loss": loss, "train_op": train_op}

    def loss(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """Adds the model to the default graph, and returns its loss."""
        # Servers outlive a case: unique names keep the cases apart.
        with tf.variable_scope("case_" + re.sub(r"\W", "_", self.name), reuse=tf.AUTO_REUSE):
            return tf.reduce_mean(tf.square(MODELS[self.model](self, features) - features["y"]))

    def _optimizer(self) -> Any:
        if self.model == "configured":
            return CONFIGURED[self.optimizer].optimizer()
        return KERAS[self.optimizer] if self.optimizer in KERAS else OPTIMIZERS[self.optimizer]()

    def _parts(self, features: dict[str, tf.Tensor]) -> list[dict[str, tf.Tensor]]:
        """Returns the batch as one, or as the micro-batches whose gradients the model joins."""
        count = {"joined": 2, "joined_once": 3, "joined_in_order": 3}.get(self.model, 1)
        if count == 1:
            return [features]
        return [{name: tensor[number::count] for name, tensor in features.items()} for number in range(count)]

    def _train_another(self, features: dict[str, tf.Tensor], *, after: tf.Operation) -> tf.Operation:
        """Trains a second model in the same step, with inputs from the updated first model."""
        first = tf.trainable_variables()
        with tf.control_dependencies([after]):
            with tf.variable_scope("second_" + re.sub(r"\W", "_", self.name)):
                known = tf.add_n([tf.reduce_sum(variable) for variable in first])
                loss = tf.reduce_mean(tf.square(MODELS[self.model](self, features) - known - features["y"]))
            second = [variable for variable in tf.trainable_variables() if variable not in first]
            return tf.group(after, OPTIMIZERS[self.optimizer]().minimize(loss, var_list=second))


def _keras_models() -> ModuleType:
    """Imports the module only when such a case is built, because it imports Keras."""
    return importlib.import_module("tests.parallel.keras_models")
