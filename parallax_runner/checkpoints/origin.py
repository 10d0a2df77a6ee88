"""The file of Keras from which a checkpoint was made. Imports no TensorFlow."""

from __future__ import annotations

from pathlib import Path

from parallax_runner.files.plain import object_in

FOLDER = "source"
ORIGIN = "origin.json"


def source_of(prefix: Path) -> Path:
    """Returns the file from which a checkpoint was made, or the checkpoint's own prefix."""
    if prefix.parent.name != FOLDER:
        return prefix
    return Path(object_in(prefix.parent / ORIGIN).get("path", prefix))
