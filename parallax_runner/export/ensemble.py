"""Several SavedModels as one, which averages what they predict: `python -m parallax_runner.export.ensemble FOLDER
MEMBER…`, a process of its own, since it needs TensorFlow 2's way of execution."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from parallax_runner.errors import ExportError
from parallax_runner.process.exit_status import tell

SIGNATURE = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY


def write_ensemble(members: Sequence[Path], folder: Path) -> list[str]:
    """Writes the SavedModel to `folder`, which it replaces, and returns the names of its outputs: those of the members
    that are floating-point numbers, each the mean over the members.

    Raises ExportError where members differ in inputs or outputs, or have no output of which there is a mean.
    """
    loaded = [tf.saved_model.load(str(member)) for member in members]
    signatures = [one.signatures[SIGNATURE] for one in loaded]
    inputs = signatures[0].structured_input_signature[1]
    outputs = signatures[0].structured_outputs
    for member, signature in zip(members, signatures, strict=True):
        if _specs(signature.structured_input_signature[1]) != _specs(inputs):
            raise ExportError(f"{member} takes other inputs than {members[0]}: an ensemble's members take the same")
        if _specs(signature.structured_outputs) != _specs(outputs):
            raise ExportError(f"{member} has other outputs than {members[0]}: an ensemble's members have the same")
    averaged = sorted(name for name, tensor in outputs.items() if tensor.dtype.is_floating)
    if not averaged:
        raise ExportError(f"the outputs {sorted(outputs)} are no floating-point numbers, so there is no mean of them")

    def predict(**given: tf.Tensor) -> dict[str, tf.Tensor]:
        predictions = [signature(**given) for signature in signatures]
        return {name: tf.add_n([each[name] for each in predictions]) / len(predictions) for name in averaged}

    module = tf.Module()
    module.members = loaded  # so that their variables are saved
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    tf.saved_model.save(
        module, str(partial), signatures={SIGNATURE: tf.function(predict).get_concrete_function(**inputs)}
    )
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return averaged


def _specs(tensors: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (tensor.dtype, str(tensor.shape)) for name, tensor in tensors.items()}


if __name__ == "__main__":
    try:
        tf.config.set_visible_devices([], "GPU")  # jobs may have them
        print(", ".join(write_ensemble([Path(member) for member in sys.argv[2:]], Path(sys.argv[1]))))
    except Exception as error:
        sys.exit(tell(error))
