"""The noun that capture makes: a training graph for one device, and what was learnt while it was built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parallax_runner.config.objective import Direction

# What a variable may declare so that ranks merge it.
MERGED = ("sum", "mean")


@dataclass(frozen=True)
class Variable:
    """A variable of the graph; reference variables are already resource variables here.

    `name` is the name of its `VarHandleOp`, `initializer` of the op that assigns its initial value. A piece of a
    variable that the user's own partitioner split says in `full_name`, `full_shape` and `offset` (one number a
    dimension) which part of which logical variable it is; for any other variable these are its own name, its shape
    and zeros. `aggregation` is what it declares about replicas: «none», «sum», «mean» or «only_first_replica».
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


@dataclass(frozen=True)
class Gradient:
    """A raw gradient: what left the backward pass for `variable`, before the model's own post-processing.

    `values` and `indices` are names of tensors. `indices` is None for a dense gradient; otherwise values[i] is (a part
    of) the gradient of row indices[i], and ids may repeat.
    """

    variable: str
    values: str
    indices: str | None


@dataclass(frozen=True)
class MetricSums:
    """Metrics of a captured graph. `tensors` are names; one batch's values of them are added to those of all other
    batches of all ranks. `results` turns such sums, in the order of `tensors`, into values by name; it needs no
    session. `directions` says, by name, which values are better; None: nobody knows."""

    tensors: tuple[str, ...]
    results: Callable[[Sequence[Any]], dict[str, float]] = field(repr=False, compare=False)
    directions: Mapping[str, Direction | None] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class SingleDeviceGraph:
    """A complete training graph, as a serialisable `MetaGraphDef`, with the names that training needs.

    Of a step:
    - `features` maps a feature of the data to the name of the placeholder that it is fed to. `loss` is a scalar, the
      mean over the batch, and `metrics` are those of a step; None: there are none.
    - `gradients` holds only those that reach an update op of `train_op`.
    - `fingerprint` is equal for two builds of the same graph.
    - `has_optimizer`: it is a Keras model's or a training step's, which bring an optimizer of their own.
    - `callbacks` are the Python functions that its ops call (`tf.numpy_function`, `Dataset.from_generator`):
      TensorFlow forgets them when nobody holds them. `keras_model` is the object that the graph was traced from, if it
      is a Keras model's.

    Without training:
    - `validation_loss` and `validation_metrics` are likewise of one batch. `outputs` maps what a served model gives to
      names of tensors. `validation_features` maps features to the placeholders that all these depend on; None:
      `features` does.
    - `validation_metric` names what a run is compared by, if the model says so: one of `validation_metrics`, or
      «perplexity», the exponential of the validation loss.

    Of a script:
    - `observers` are ops outside the update region that read what it makes of gradients. `asked` are ops of the region,
      and observers, whose values every worker may ask for in a step, beside the train op.
    - `apart` are sets of variables, each with all whose updates are only asked for together; empty: a step has all.
    - `losses` are the names of what gradients were taken of.
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
    has_optimizer: bool = False
    metrics: MetricSums | None = None
    validation_metrics: MetricSums | None = None
    validation_features: Mapping[str, str] | None = None
    callbacks: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    keras_model: Any = field(default=None, repr=False, compare=False)

    @property
    def evaluated_by(self) -> Mapping[str, str]:
        """The placeholders by feature of what is computed without training."""
        return self.features if self.validation_features is None else self.validation_features

    @property
    def validates_any_size(self) -> bool:
        """Whether a validation may have batches of other sizes than training."""
        return self.evaluated_by != self.features

    @property
    def fetched_in_training(self) -> tuple[str, ...]:
        """Tensors that every step fetches beside its loss."""
        return self.metrics.tensors if self.metrics else ()

    @property
    def fetched_in_validation(self) -> tuple[str, ...]:
        """Tensors that a validation fetches."""
        loss = (self.validation_loss,) if self.validation_loss else ()
        return (*loss, *(self.validation_metrics.tensors if self.validation_metrics else ()))

    @property
    def merged(self) -> tuple[Variable, ...]:
        """The variables without a gradient that declare that ranks merge what they add in a step."""
        trained = {gradient.variable for gradient in self.gradients}
        return tuple(one for one in self.variables if one.aggregation in MERGED and one.name not in trained)

    def part_of(self, variable: str) -> int:
        """The number of the set in `apart` that a variable is in; 0 where a step has all."""
        return next((number for number, part in enumerate(self.apart) if variable in part), 0)
