"""Combines SavedModels into one SavedModel that averages their predictions.

`python -m parallax_runner.export.ensemble FOLDER MEMBER…` runs in a separate process, since combining SavedModels
requires the eager execution of TensorFlow 2.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from parallax_runner.errors import ExportError
from parallax_runner.files.plain import remove
from parallax_runner.process.exit_status import tell

SIGNATURE = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY


def write_ensemble(members: Sequence[Path], folder: Path) -> list[str]:
    """Writes the combined SavedModel to `folder`, which is replaced, and returns the names of its outputs.

    The outputs are the members' floating-point outputs, each averaged over the members. Raises ExportError if members
    differ in inputs or outputs, or if no output contains floating-point numbers.
    """
    loaded = [tf.saved_model.load(str(member)) for member in members]
    signatures = [one.signatures[SIGNATURE] for one in loaded]
    inputs = signatures[0].structured_input_signature[1]
    outputs = signatures[0].structured_outputs
    _refuse_different(members, signatures)
    averaged = sorted(name for name, tensor in outputs.items() if tensor.dtype.is_floating)
    if not averaged:
        raise ExportError(f"the outputs {sorted(outputs)} are not floating-point numbers, so they cannot be averaged")

    def predict(**given: tf.Tensor) -> dict[str, tf.Tensor]:
        predictions = [signature(**given) for signature in signatures]
        return {name: tf.add_n([each[name] for each in predictions]) / len(predictions) for name in averaged}

    module = tf.Module()
    module.members = loaded  # keeps the members' variables in the SavedModel
    partial = folder.with_name(f".{folder.name}.partial")
    remove(partial)
    tf.saved_model.save(
        module, str(partial), signatures={SIGNATURE: tf.function(predict).get_concrete_function(**inputs)}
    )
    remove(folder)
    partial.rename(folder)
    return averaged


def _refuse_different(members: Sequence[Path], signatures: Sequence[Any]) -> None:
    """Raises ExportError if the inputs or outputs of a member differ from those of the first member."""
    inputs = signatures[0].structured_input_signature[1]
    outputs = signatures[0].structured_outputs
    for member, signature in zip(members, signatures, strict=True):
        if _specs(signature.structured_input_signature[1]) != _specs(inputs):
            raise ExportError(f"the inputs of {member} differ from those of {members[0]}, expected the same inputs")
        if _specs(signature.structured_outputs) != _specs(outputs):
            raise ExportError(f"the outputs of {member} differ from those of {members[0]}, expected the same outputs")


def _specs(tensors: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (tensor.dtype, str(tensor.shape)) for name, tensor in tensors.items()}


if __name__ == "__main__":
    try:
        tf.config.set_visible_devices([], "GPU")  # jobs may be using the GPUs
        print(", ".join(write_ensemble([Path(member) for member in sys.argv[2:]], Path(sys.argv[1]))))
    except Exception as error:
        sys.exit(tell(error))
