"""One training step of a compiled Keras model, through the model's own `train_step`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parallax_runner.errors import CaptureError, Setting
from parallax_runner.graph.components import Specs
from parallax_runner.graph.traced.trace import Steps

log = logging.getLogger(__name__)
# One feature, several features in the order of the outputs, or one feature for each output by name.
Names = str | Sequence[str] | Mapping[str, str] | None
# Builds (x, y, sample_weight) from the features by name.
AsBatch = Callable[[Mapping[str, Any]], tuple[Any, Any, Any]]


def is_keras_model(made: Any) -> bool:
    """Returns whether an object is a Keras 3 model, without importing Keras."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(made, keras.Model)


def keras_steps(model: Any, features: Specs, *, labels: Names, sample_weight: Names) -> Steps:
    """Returns the steps that `fit` would run on a batch. First builds the model and its optimizer if needed.

    Raises CaptureError if the model is not compiled, or if `labels` or `sample_weight` contains an unknown feature.
    """
    given = [*_flat(labels), *_flat(sample_weight)]
    for key, names in (("labels", labels), ("sample_weight", sample_weight)):
        for name in _flat(names):
            if name not in features:
                raise CaptureError(f"the data has no such feature; it has {sorted(features)}").about(
                    Setting.of(f"model.{key}", name)
                )
    inputs = [name for name in features if name not in given]

    def batch(tensors: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        named = {name: tensors[name] for name in inputs}
        return _inputs(model, named), _picked(labels, tensors), _picked(sample_weight, tensors)

    return steps_on(model, features, batch)


def steps_on(model: Any, features: Specs, as_batch: AsBatch) -> Steps:
    """Returns the steps for the batch that `as_batch` builds from the features. First builds the model and its
    optimizer.

    Raises CaptureError if the model is not compiled, or does not use TensorFlow.
    """
    import keras

    backend = keras.config.backend()
    if backend != "tensorflow":
        raise CaptureError(
            f"the Keras model «{model.name}» uses the backend {backend}, but only TensorFlow can be distributed: set "
            'KERAS_BACKEND=tensorflow, or "backend": "tensorflow" in ~/.keras/keras.json'
        )
    if not model.compiled or model.optimizer is None:
        raise CaptureError(f"the Keras model «{model.name}» is not compiled: call model.compile(optimizer=…, loss=…)")
    _build(model, as_batch(_symbols(features)))
    model.reset_metrics()  # fit also does this, because metrics can hold counts from earlier evaluations

    def evaluate(tensors: dict[str, Any]) -> dict[str, Any]:
        batch = as_batch(tensors)
        loss, outputs = _loss_of_batch(model, batch), _outputs(model, batch[0])
        return {"loss": loss, "outputs": outputs}

    return Steps(lambda tensors: model.train_step(as_batch(tensors)), evaluate, model, _notes(model))


def _notes(model: Any) -> list[str]:
    if (model.steps_per_execution or 1) == 1:
        return []
    return [f"the model's steps_per_execution={model.steps_per_execution} is ignored: a step is one batch"]


def _loss_of_batch(model: Any, batch: tuple[Any, Any, Any]) -> Any:
    try:
        return model.test_step(batch).get("loss")
    except Exception as error:  # for example, a custom model with only a train_step
        log.warning("the model's test_step failed, so there is no validation loss: %s: %s", type(error).__name__, error)
        return None


def _outputs(model: Any, inputs: Any) -> dict[str, Any]:
    """Returns the model's predictions by output name."""
    made = model(inputs, training=False) if model._call_has_training_arg else model(inputs)
    if isinstance(made, Mapping):
        return {str(name): tensor for name, tensor in made.items()}
    if not isinstance(made, list | tuple):
        return {"output": made}
    names = getattr(model, "output_names", None) or [f"output_{number}" for number in range(len(made))]
    return dict(zip(names, made, strict=False))


def _symbols(features: Specs) -> dict[str, Any]:
    import keras

    # Keras' own fit also builds a model as if all of its inputs were dense.
    return {name: keras.KerasTensor(tuple(spec.shape), spec.dtype.name) for name, spec in features.items()}


def _build(model: Any, batch: tuple[Any, Any, Any]) -> None:
    model._symbolic_build(data_batch=batch)
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def _inputs(model: Any, tensors: Mapping[str, Any]) -> Any:
    """Returns the model's inputs: a tensor if the model has one input, otherwise a dict by name."""
    if isinstance(getattr(model, "_inputs_struct", None), dict):
        return dict(tensors)
    names = _input_names(model)
    if len(tensors) == 1 and len(names) <= 1:
        return next(iter(tensors.values()))
    if not names:
        return dict(tensors)
    missing = [name for name in names if name not in tensors]
    if missing:
        raise CaptureError(f"the Keras model needs the input «{missing[0]}»; the data has {sorted(tensors)}")
    if len(names) == 1:
        return tensors[names[0]]
    return {name: tensors[name] for name in names}


def _input_names(model: Any) -> list[str]:
    """Returns the names of a model's inputs, or an empty list if they are unknown."""
    if getattr(model, "_functional", model) is None:
        return []
    return getattr(model, "input_names", None) or []


def _picked(names: Names, tensors: Mapping[str, Any]) -> Any:
    if names is None or isinstance(names, str):
        return None if names is None else tensors[names]
    if isinstance(names, Mapping):
        return {output: tensors[name] for output, name in names.items()}
    return [tensors[name] for name in names]


def _flat(names: Names) -> list[str]:
    if names is None or isinstance(names, str):
        return [] if names is None else [names]
    return list(names.values()) if isinstance(names, Mapping) else list(names)
