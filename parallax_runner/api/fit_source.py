"""Provides the driver and the workers with the model and data of a script that calls `fit`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from parallax_runner.api.earlier_calls import Before
from parallax_runner.api.fit_metrics import ValidationMetrics
from parallax_runner.api.fit_validation import Schedule
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.common_features import validation_features_of
from parallax_runner.data.dataset import Dataset, validates_at_least
from parallax_runner.data.from_arrays import Arrays
from parallax_runner.data.python_batches import PythonBatches
from parallax_runner.data.shares import is_uneven_run
from parallax_runner.graph.single_device_graph import SingleDeviceGraph

if TYPE_CHECKING:
    from parallax_runner.graph.traced.keras_model import MakeElement
    from parallax_runner.graph.traced.untouched import Untouched


@dataclass(frozen=True)
class FitSource:
    """A compiled Keras `model` and its `dataset`, which has a `structure` (data/batch_structure.py).

    `before` is what earlier calls of fit have done with the data. `schedule` tells which epochs end with a validation,
    which also computes `metrics`.
    """

    model: Any
    dataset: Any
    before: Before
    schedule: Schedule
    metrics: ValidationMetrics = field(default_factory=ValidationMetrics)

    def load_dataset(self, config: RunConfig) -> Dataset:
        """Returns the script's dataset."""
        # As in Keras, each call of fit shuffles differently.
        if isinstance(self.dataset, Arrays):
            return self.dataset.with_seed(config.train.seed + len(config.model["earlier"]))
        if isinstance(self.dataset, PythonBatches):
            return self._python_batches(self.dataset, config)
        loaded: Dataset = self.dataset.after(self.before.steps)
        return loaded

    def _python_batches(self, dataset: PythonBatches, config: RunConfig) -> PythonBatches:
        def validations_before(step: int) -> int:
            return self.before.validations + self.schedule.before(-(-step // dataset.epoch_steps))

        found = dataset.after(self.before.steps, self.before.epochs, validations_before)
        return found.with_seed(config.train.seed)

    def build_graph(self, config: RunConfig, dataset: Dataset) -> SingleDeviceGraph:
        """Captures the model's training step on one replica's batch."""
        if is_uneven_run(config, dataset):
            from parallax_runner.graph.uneven_steps import with_share

            return with_share(self._capture(config, None))
        return self._capture(config, config.data["batch_size"])

    def build_serving_graph(self, config: RunConfig, dataset: Dataset) -> SingleDeviceGraph:
        """Captures the model's training step for batches of any size."""
        return self._capture(config, None)

    def untouched(self, config: RunConfig, dataset: Dataset) -> AbstractContextManager[Untouched]:
        """Provides the model's own training step. The model has its values again afterwards."""
        from parallax_runner.graph.traced.untouched import untouched_model

        features = self._features(None if is_uneven_run(config, dataset) else config.data["batch_size"])
        return untouched_model(self.model, features, self._for_model(self.dataset.structure.element_of))

    def _features(self, batch_size: int | None) -> dict[str, Any]:
        from parallax_runner.graph.components import specs_of

        return specs_of(self.dataset.features, batch_size)

    def _capture(self, config: RunConfig, batch_size: int | None) -> SingleDeviceGraph:
        from parallax_runner.graph.components import specs_of
        from parallax_runner.graph.traced.capture_step import capture_model
        from parallax_runner.graph.traced.row_updates import sparse_updates_of

        validates = validates_at_least(self.dataset, 1)
        validation_element = self.dataset.validation_structure.element_of if validates else None
        return capture_model(
            self.model,
            self._features(batch_size),
            self._for_model(self.dataset.structure.element_of),
            seed=config.train.seed,
            sparse_updates=sparse_updates_of(config.model),
            validation=None if validation_element is None else self._for_model(validation_element),
            validation_features=specs_of(validation_features_of(self.dataset), batch_size),
            validation_metrics=None if validation_element is None else self.metrics.named(validation_element),
        )

    def _for_model(self, element: MakeElement) -> MakeElement:
        return self.metrics.for_model(element, self.model)
