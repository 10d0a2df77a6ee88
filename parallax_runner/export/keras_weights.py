"""Loads a run's checkpoint into a plain Keras model, including the optimizer state, to continue training in Keras."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import damage, files_of, sidecar_path
from parallax_runner.checkpoints.start import newest_whole
from parallax_runner.errors import CheckpointError, reason_in
from parallax_runner.files.literal_path import is_pattern, literal
from parallax_runner.files.plain import reason_of


def load_into_keras(model: Any, checkpoint: str | os.PathLike[str]) -> Path:
    """Loads a checkpoint into all variables of a built `keras.Model` and, if the model is compiled, into the variables
    of its optimizer.

    `checkpoint` is a prefix (`…/ckpt/model.ckpt-300`), a folder of checkpoints, or a run directory. From a folder, the
    newest undamaged checkpoint is loaded. The names in the checkpoint are Keras's names (`variable.path`). Other values
    in the checkpoint are ignored. Returns the prefix of the checkpoint.

    Raises CheckpointError, before any variable is changed, if there is no undamaged checkpoint, if the model is not
    built, or if a variable is missing from the checkpoint or has a different shape in it.
    """
    prefix = _prefix(Path(checkpoint))
    variables = variables_by_path(model)
    with literal(prefix) as name:
        try:
            reader = tf.train.load_checkpoint(name)
            shapes = {path: tuple(shape) for path, shape in reader.get_variable_to_shape_map().items()}
            found = _matched(prefix, variables, shapes, getattr(model, "optimizer", None))
            for path, variable in found.items():
                variable.assign(reader.get_tensor(path))
        except (tf.errors.OpError, ValueError) as error:
            message = error.message if isinstance(error, tf.errors.OpError) else str(error)
            raise CheckpointError(f"checkpoint {prefix} cannot be read: {reason_in(message)}") from error
    return prefix


def _prefix(path: Path) -> Path:
    try:
        if not files_of(path):
            for folder in (path, path / "ckpt"):
                found = newest_whole(folder).prefix
                if found is not None:
                    return found
            raise CheckpointError(
                f"{path}: there is no checkpoint at this path. Expected the prefix of a checkpoint (…/model.ckpt-300), "
                "a folder of checkpoints, or a run directory"
            )
        # Checkpoints that plain TensorFlow has written have no sidecar.
        fault = damage(path) if os.path.lexists(sidecar_path(path)) else None
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {reason_of(error)}") from error
    if fault is not None:
        raise CheckpointError(f"checkpoint {path} is damaged: {fault}")
    if is_pattern(path.name):
        raise CheckpointError(
            f"checkpoint {path}: TensorFlow treats «{path.name}» as a pattern. Rename the files of this checkpoint "
            "to a name without * ? [ \\"
        )
    return path


def variables_by_path(model: Any) -> dict[str, Any]:
    """Returns variables by path: first the model's, then those of its optimizers. Builds the optimizer if it is not
    built yet and the model has Keras' own `train_step`. If `fit` has captured the model in this process, returns the
    variables that its steps use, by their names in the checkpoint.

    Raises CheckpointError if the model is not built, or if two variables have the same path.
    """
    from parallax_runner.graph.traced.model_variables import named_variables, was_captured

    if was_captured(model):
        return named_variables(model)
    if not model.built and not model.variables:
        raise CheckpointError(
            f"model «{model.name}» is not built, so it has no variables to load into. Call the model on a batch first"
        )
    found: dict[str, Any] = {}
    for variable in [*model.variables, *_of_optimizers(model)]:
        if found.setdefault(variable.path, variable) is not variable:
            raise CheckpointError(
                f"two variables of model «{model.name}» are called «{variable.path}»: give the layers different names"
            )
    return found


def _of_optimizers(model: Any) -> list[Any]:
    from parallax_runner.graph.traced.held_objects import held_optimizers
    from parallax_runner.graph.traced.keras_model import has_own_train_step

    if has_own_train_step(model):
        return [variable for one in held_optimizers(model) if one.built for variable in one.variables]
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return []
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    return list(optimizer.variables)


def _matched(
    prefix: Path, variables: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], optimizer: Any
) -> dict[str, Any]:
    """Returns variables by their names in the checkpoint.

    Raises CheckpointError if the checkpoint lacks a variable or contains a variable with a different shape.
    """
    found = {}
    for path, variable in variables.items():
        name = path if path in shapes else _other_name(path, optimizer)
        if name not in shapes:
            raise CheckpointError(f"checkpoint {prefix} has no variable «{path}»{_hint(path, list(shapes))}")
        if shapes[name] != tuple(variable.shape):
            raise CheckpointError(
                f"checkpoint {prefix}: variable «{name}» has shape {list(shapes[name])}, but shape "
                f"{list(variable.shape)} in the model"
            )
        found[name] = variable
    return found


def _other_name(path: str, optimizer: Any) -> str:
    """Returns the other name that a slot may have in the checkpoint.

    For an optimizer inside a `LossScaleOptimizer`, slot names begin with the optimizer's name if the first training
    step built the optimizer, but not if `build` was called.
    """
    above = f"{optimizer.name}/" if optimizer is not None else ""
    return path.removeprefix(above) if path.startswith(above) else above + path


def _hint(path: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(path, names, n=1)
    nearest = f"; the closest name is «{close[0]}»" if close else ""
    return (
        f"{nearest}. Keras numbers the names of layers and optimizers across all models of a process. Call "
        "keras.utils.clear_session() before you create the model, or name its layers"
    )
