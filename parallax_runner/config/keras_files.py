"""The names of files in which Keras saves weights."""

import os

ENDINGS = (".keras", ".weights.h5")


def is_keras_file(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path has the name of a file that `model.save` or `model.save_weights` writes."""
    return os.fspath(path).endswith(ENDINGS)
