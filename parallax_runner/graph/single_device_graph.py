"""The result of capture: a training graph for one device, with information recorded while the graph was built."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from parallax_runner.config.objective import Direction
from parallax_runner.data.shares import SHARE
from parallax_runner.graph.group_measures import GroupMeasure

# With these aggregations, ranks merge their changes to a variable.
MERGED = ("sum", "mean")


@dataclass(frozen=True)
class Variable:
    """A variable of the graph. Reference variables have already been converted to resource variables.

    `name` is the name of the variable's `VarHandleOp`, and `initializer` is the name of the op that assigns its initial
    value. For a piece of a variable that the user's own partitioner split, `full_name` and `full_shape` describe the
    logical variable, and `offset` (one number per dimension) is the piece's position in the logical variable. For any
    other variable, `full_name` is `name`, `full_shape` is `shape`, and `offset` contains zeros. `aggregation` is the
    variable's declared aggregation across replicas: «none», «sum», «mean» or «only_first_replica». `is_trainable` is
    the variable's own setting, which is true unless the model says otherwise.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    initializer: str
    saved: bool
    full_name: str
    full_shape: tuple[int, ...]
    offset: tuple[int, ...]
    aggregation: str = "none"
    is_trainable: bool = True


@dataclass(frozen=True)
class Gradient:
    """A raw gradient of `variable`: the result of the backward pass, before the model's own post-processing.

    `values` and `indices` are tensor names. For a dense gradient, `indices` is None. Otherwise values[i] is the
    gradient of row indices[i], or a part of that gradient if the index appears more than once.
    """

    variable: str
    values: str
    indices: str | None


class DivisorKind(enum.Enum):
    """How the divisor of a loss follows from a batch. Whether `ONE_IF_SUM` and `COUNT_IF_SUM` count, only a trial
    shows: the loss must be a sum over examples, divided by 1 or by the count."""

    COUNT = "count"
    ONE = "one"
    ONE_IF_SUM = "one_if_sum"
    COUNT_IF_SUM = "count_if_sum"

    @property
    def decided(self) -> DivisorKind:
        """The kind if a trial has shown that the divisor counts."""
        return {DivisorKind.ONE_IF_SUM: DivisorKind.ONE, DivisorKind.COUNT_IF_SUM: DivisorKind.COUNT}.get(self, self)


@dataclass(frozen=True)
class Divisor:
    """A scalar by which the step divides a sum over examples. `tensor` is its name, and `term` the number of the loss
    in the order in which the step computes its Keras losses and added losses. If the step divides the gradient of a
    tape by the scalar, `term` is the negative number of the tape's target (graph/traced/loss_targets.py).

    A COUNT is a number of values, or a sum of weights, that the step computes from the batch. ONE is the divisor of a
    loss that is a sum itself.
    """

    tensor: str
    kind: DivisorKind
    term: int


@dataclass(frozen=True)
class RankSum:
    """A value that the model sums over the replicas, or the gradient of such a sum. `tensor` is its name."""

    tensor: str
    is_gradient: bool


@dataclass(frozen=True)
class MetricSums:
    """Metrics of a captured graph.

    `tensors` are tensor names. The tensors' values are summed over all batches on all ranks. `last` are names of
    scalars of a step, of which only the last step counts, as the mean over the ranks. `results` turns the sums and,
    as a second argument, these means into values by metric name, without a session. `directions` maps each metric name
    to «maximize» or «minimize», or to None if the direction is unknown. `rows` maps the name of each metric of groups
    to the names of the tensors of its rows (`GroupMetric`), and `measures` to the function of all rows.
    """

    tensors: tuple[str, ...]
    results: Callable[..., dict[str, float]] = field(repr=False, compare=False)
    directions: Mapping[str, Direction | None] = field(default_factory=dict, compare=False)
    last: tuple[str, ...] = ()
    rows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    measures: Mapping[str, GroupMeasure] = field(default_factory=dict, repr=False, compare=False)

    @property
    def every(self) -> tuple[str, ...]:
        """All tensors that a step computes."""
        return (*self.tensors, *self.last, *(name for one in self.rows.values() for name in one))


@dataclass(frozen=True)
class SingleDeviceGraph:
    """A complete training graph as a serializable `MetaGraphDef`, with the names of the tensors and ops that training
    needs.

    For a training step:
    - `features` maps each feature of the data to the name of its placeholder. If the replicas of a step can have
      different numbers of examples, one more entry is the replica's share (data/shares.py). `loss` is a scalar: the
      mean over the batch. `metrics` are the metrics of a step, or None if there are none.
    - `gradients` contains only the gradients that reach an update op of `train_op`.
    - `fingerprint` is the same in any two builds of the same graph.
    - `divisors` are the divisors of the model's losses that are no means over the examples.
      `rank_sums` are the values that the model asks to sum over the replicas, each after those that it depends on.
    - `has_optimizer` is set for a Keras model or a training step, because both have their own optimizer.
    - `notes` tell the user which parts of the model are ignored or omitted.
    - `callbacks` are the Python functions that the graph's ops call (`tf.numpy_function`, `Dataset.from_generator`).
      TensorFlow deletes these functions when nothing refers to them.
    - `initial_values` maps the names of ops that read a variable of this process to functions that return the
      variable's value as a tensor. Such an op gives a variable of the graph its initial value.
    - `keras_model` is the Keras model from which the graph was traced, or None. `learning_rates` are the names of the
      variables of the learning rates that callbacks of the model can set.
    - `loss_trial` tries whether the losses of a Keras model or a training step are means over the batch
      (graph/traced/loss_trial.py). It is None for a TensorFlow 1 graph.

    For validation and serving:
    - `validation_loss` and `validation_metrics` are computed for one batch. `outputs` maps the outputs of a served
      model to tensor names. `validation_features` maps features to the placeholders that validation and serving use. If
      `validation_features` is None, they use the placeholders in `features`.
    - `validation_metric` names the value that is used to compare runs, if the model chooses one: one of
      `validation_metrics`, or «perplexity», the exponential of the validation loss.
    - `knows_validation_loss` is False if `validation_loss` is NaN, because the model's own evaluation returns metrics
      but no loss.

    For a script:
    - `observers` are ops outside the update region that read values computed from gradients in the region. `asked`
      contains ops, in the region or among the observers, whose values every worker can fetch together with the train
      op.
    - `apart` contains sets of variables that are always updated together. It is empty if a step updates all variables.
    - `losses` are the names of the tensors whose gradients were computed.
    - `unknown_loss` is the reason why `loss` is not the script's loss but NaN, or None.
    """

    meta_graph: Any = field(repr=False)
    features: dict[str, str]
    loss: str
    train_op: str
    validation_loss: str | None
    validation_metric: str | None
    outputs: dict[str, str]
    variables: tuple[Variable, ...]
    gradients: tuple[Gradient, ...]
    fingerprint: str
    asked: tuple[str, ...] = ()
    observers: tuple[str, ...] = ()
    apart: tuple[frozenset[str], ...] = ()
    losses: tuple[str, ...] = ()
    divisors: tuple[Divisor, ...] = ()
    rank_sums: tuple[RankSum, ...] = ()
    unknown_loss: str | None = None
    knows_validation_loss: bool = True
    learning_rates: tuple[str, ...] = ()
    has_optimizer: bool = False
    metrics: MetricSums | None = None
    validation_metrics: MetricSums | None = None
    validation_features: Mapping[str, str] | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)
    callbacks: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    initial_values: Mapping[str, Callable[[], Any]] = field(default_factory=dict, repr=False, compare=False)
    keras_model: Any = field(default=None, repr=False, compare=False)
    loss_trial: Any = field(default=None, repr=False, compare=False)

    @property
    def evaluated_by(self) -> Mapping[str, str]:
        """The placeholders for validation and serving, by feature."""
        return self.features if self.validation_features is None else self.validation_features

    @property
    def validates_any_size(self) -> bool:
        """Whether validation batches can differ in size from training batches."""
        return self.evaluated_by != self.features

    @property
    def decided_divisors(self) -> tuple[Divisor, ...]:
        """The divisors that the ranks have in common, without those of losses of which no trial has shown that they
        are sums."""
        return tuple(one for one in self.divisors if one.kind == one.kind.decided)

    @property
    def is_uneven(self) -> bool:
        """Whether the replicas of a step can have different numbers of examples."""
        return SHARE in self.features

    @property
    def fetched_in_training(self) -> tuple[str, ...]:
        """The tensors that every step fetches in addition to its loss."""
        return self.metrics.every if self.metrics else ()

    @property
    def fetched_in_validation(self) -> tuple[str, ...]:
        """The tensors that validation fetches."""
        loss = (self.validation_loss,) if self.validation_loss else ()
        return (*loss, *(self.validation_metrics.every if self.validation_metrics else ()))

    @property
    def merged(self) -> tuple[Variable, ...]:
        """The variables without a gradient whose declared aggregation merges the ranks' changes in every step."""
        trained = {gradient.variable for gradient in self.gradients}
        return tuple(one for one in self.variables if one.aggregation in MERGED and one.name not in trained)

    def part_of(self, variable: str) -> int:
        """Returns the index of the set in `apart` that contains a variable, or 0 if a step updates all variables."""
        return next((number for number, part in enumerate(self.apart) if variable in part), 0)
