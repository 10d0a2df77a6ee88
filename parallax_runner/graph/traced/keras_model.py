"""The training step and the evaluation of a compiled Keras model, through its own `train_step` and `test_step`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parallax_runner.data.batch_structure import packed
from parallax_runner.errors import CaptureError, Setting
from parallax_runner.graph.components import Specs
from parallax_runner.graph.traced.held_objects import held_layers
from parallax_runner.graph.traced.named_metrics import NamedMetrics, predictions_noted
from parallax_runner.graph.traced.trace import Steps

log = logging.getLogger(__name__)
# One feature, several features in the order of the outputs, or one feature for each output by name.
Names = str | Sequence[str] | Mapping[str, str] | None
# Builds what Keras passes to `train_step` or `test_step` from the features by name.
MakeElement = Callable[[Mapping[str, Any]], Any]


def is_keras_model(made: Any) -> bool:
    """Returns whether an object is a Keras 3 model, without importing Keras."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(made, keras.Model)


def has_own_train_step(model: Any) -> bool:
    """Returns whether the script, and not Keras, defines the model's `train_step`."""
    import keras

    return "train_step" in vars(model) or type(model).train_step is not keras.Model.train_step


def keras_steps(
    model: Any,
    features: Specs,
    *,
    labels: Names,
    sample_weight: Names,
    groups: str | None = None,
    validation_metrics: Sequence[str] = (),
) -> Steps:
    """Returns the steps that `fit` would run on a batch. First builds the model and its optimizer if needed. Its
    evaluation also computes `validation_metrics`. `groups` is the feature with the group of an example.

    Raises CaptureError if the model is not compiled, if `labels` or `sample_weight` contains an unknown feature, or if
    a metric cannot be computed.
    """
    given = [*_flat(labels), *_flat(sample_weight)]
    for key, names in (("labels", labels), ("sample_weight", sample_weight)):
        for name in _flat(names):
            if name not in features:
                raise CaptureError(f"the data has no such feature; it has {sorted(features)}").about(
                    Setting.of(f"model.{key}", name)
                )
    inputs = [name for name in features if name not in given]

    def element(tensors: Mapping[str, Any]) -> Any:
        named = {name: tensors[name] for name in inputs}
        return packed(_inputs(model, named), _picked(labels, tensors), _picked(sample_weight, tensors))

    notes: list[str] = []

    def tested(tensors: Mapping[str, Any]) -> Any:
        try:
            return _tested(model, element(tensors))
        except CaptureError as error:  # the data may have no validation examples
            note = f"there is no validation loss: {error}"
            if note not in notes:
                log.warning("%s", note, exc_info=True)
                notes.append(note)
            return {}

    named = (
        NamedMetrics.of(
            validation_metrics, labels=labels, sample_weight=sample_weight, groups=groups, features=features
        )
        if validation_metrics
        else None
    )
    return _steps(model, features, element, tested, notes, named)


def steps_on(
    model: Any,
    features: Specs,
    element: MakeElement,
    validation: MakeElement | None,
    named: NamedMetrics | None = None,
) -> Steps:
    """Returns the steps for the elements that `element` and `validation` build from the features. First builds the
    model and its optimizer, if it has Keras' own `train_step`. `validation` is None if there is no validation data. In
    this case, Keras does not call `test_step`. `named` are more metrics of the evaluation, or None.

    Raises CaptureError if the model is not compiled, or does not use TensorFlow. Tracing the evaluation raises
    CaptureError if `test_step` fails.
    """

    def tested(tensors: Mapping[str, Any]) -> Any:
        return {} if validation is None else _tested(model, validation(tensors))

    return _steps(model, features, element, tested, [], named)


def _check_batch_size(model: Any, features: Specs) -> None:
    """Raises CaptureError if the inputs of a model have a batch size that a replica's batch does not have, as those of
    a stateful layer have."""
    fixed = {int(one.shape[0]) for one in getattr(model, "inputs", None) or () if one.shape[0] is not None}
    sizes = {spec.shape[0] for spec in features.values() if spec.shape.rank}
    if fixed and sizes and fixed != sizes:
        told = next(iter(sizes))
        part = "batches of different sizes" if told is None else f"{told} examples of each batch"
        raise CaptureError(
            f"the inputs of «{model.name}» have the fixed batch size {min(fixed)}, as a stateful layer needs it, but a "
            f"replica gets {part}: leave out the batch size of the inputs, or train with comm=local"
        )


def _steps(
    model: Any,
    features: Specs,
    element: MakeElement,
    tested: Callable[[Mapping[str, Any]], Any],
    notes: list[str],
    named: NamedMetrics | None = None,
) -> Steps:
    _check(model)
    _check_batch_size(model, features)
    _build(model, features, element)
    model.reset_metrics()  # fit also does this, because metrics can hold counts from earlier evaluations
    if (model.steps_per_execution or 1) != 1:
        notes.append(f"the model's steps_per_execution={model.steps_per_execution} is ignored: a step is one batch")

    def evaluate(tensors: dict[str, Any]) -> dict[str, Any]:
        with predictions_noted(model) as noted:
            logs = tested(tensors)
        outputs = _outputs(model, element(tensors))
        found = {"logs": logs, "loss": logs.get("loss"), "outputs": outputs}
        if named is None or not logs:
            return found
        return found | {"metrics": named.in_batch(model, noted[-1] if noted else outputs, tensors)}

    return Steps(lambda tensors: _trained(model, element(tensors)), evaluate, model, notes)


def _check(model: Any) -> None:
    import keras

    backend = keras.config.backend()
    if backend != "tensorflow":
        raise CaptureError(
            f"the Keras model «{model.name}» uses the backend {backend}, but only TensorFlow can be distributed: set "
            'KERAS_BACKEND=tensorflow, or "backend": "tensorflow" in ~/.keras/keras.json'
        )
    for layer in held_layers(model):
        if isinstance(layer, keras.layers.Discretization) and layer.bin_boundaries is None:
            raise CaptureError(
                f"the layer «{layer.name}» (Discretization) has no boundaries yet: call its adapt(), or give it "
                "bin_boundaries, before training"
            )
    if not model.compiled or (model.optimizer is None and not has_own_train_step(model)):
        raise CaptureError(f"the Keras model «{model.name}» is not compiled: call model.compile(optimizer=…, loss=…)")


def _trained(model: Any, element: Any) -> Mapping[str, Any]:
    return _checked_logs(model, "train_step", model.train_step(element))


def _tested(model: Any, element: Any) -> Mapping[str, Any]:
    try:
        returned = model.test_step(element)
    except Exception as error:  # the script's own code can fail in any way
        raise CaptureError(
            f"test_step of the model «{model.name}» failed on a validation batch: {type(error).__name__}: {error}"
        ) from error
    return _checked_logs(model, "test_step", returned)


def _checked_logs(model: Any, name: str, returned: Any) -> Mapping[str, Any]:
    if not isinstance(returned, Mapping):
        raise CaptureError(
            f"{name} of the model «{model.name}» returned {returned!r}; as in Keras, it must return a dict with the "
            "values to show by name, such as {'loss': loss}"
        )
    return returned


def _outputs(model: Any, element: Any) -> dict[str, Any]:
    """Returns the model's predictions by output name, for serving. Returns an empty dict if the model has no `call`, or
    if the script has its own `train_step` and the model cannot predict from x alone."""
    import keras

    inputs, *_ = keras.utils.unpack_x_y_sample_weight(element) if _has_parts(element) else (element,)
    if not has_own_train_step(model):
        return _predictions(model, inputs)
    # A call would build the model, perhaps for inputs of another kind than those that `train_step` passes.
    if not model.built or type(model).call is keras.layers.Layer.call:
        return {}
    try:
        return _predictions(model, inputs)
    except Exception as error:
        log.warning("the model cannot be served: it fails on x: %s: %s", type(error).__name__, error, exc_info=True)
        return {}


def _has_parts(element: Any) -> bool:
    return isinstance(element, tuple) and len(element) <= 3


def _predictions(model: Any, inputs: Any) -> dict[str, Any]:
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


def _build(model: Any, features: Specs, element: MakeElement) -> None:
    """Builds the model and its optimizer. A `train_step` of the script builds what it uses when it is traced, because
    it may call other parts of the model than `call` does."""
    if has_own_train_step(model):
        return
    model._symbolic_build(data_batch=element(_symbols(features)))
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def _inputs(model: Any, tensors: Mapping[str, Any]) -> Any:
    """Returns the model's inputs: a tensor if the model has one input, otherwise a dict by name.

    Raises CaptureError if the data lacks an input."""
    expected = getattr(model, "_inputs_struct", None)
    if isinstance(expected, dict):
        return _expected_inputs(expected, tensors)
    names = input_names(model)
    if len(tensors) == 1 and len(names) <= 1:
        return next(iter(tensors.values()))
    if not names:
        return dict(tensors)
    _check_inputs(names, tensors)
    if len(names) == 1:
        return tensors[names[0]]
    return {name: tensors[name] for name in names}


def _expected_inputs(expected: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Returns exactly the inputs of a model that takes a dict. Keras assigns the values of a dict with other keys to
    its inputs by their order, so a feature that is no input would be another input."""
    _check_inputs([name for name, one in expected.items() if not _is_optional(one)], tensors)
    return {name: tensors.get(name) for name in expected}


def _is_optional(expected: Any) -> bool:
    """Returns whether an input of a model, a KerasTensor, can be None."""
    history = getattr(expected, "_keras_history", None)
    return history is not None and bool(getattr(history.operation, "optional", False))


def _check_inputs(names: Sequence[str], tensors: Mapping[str, Any]) -> None:
    missing = [name for name in names if name not in tensors]
    if missing:
        raise CaptureError(f"the Keras model needs the input «{missing[0]}»; the data has {sorted(tensors)}")


def input_names(model: Any) -> list[str]:
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
