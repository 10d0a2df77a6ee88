"""The file `checkpoint` in which TensorFlow names the newest checkpoint of a folder. Imports no TensorFlow."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from parallax_runner.checkpoints.checkpoint_files import files_of
from parallax_runner.errors import CheckpointError
from parallax_runner.files.plain import read_text

FILE_NAME = "checkpoint"
# A field of a protocol buffer in text format. Its strings have the escapes of C, which are those of Python's bytes.
_NEWEST = re.compile(r"""^\s*model_checkpoint_path\s*:\s*("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')\s*$""", re.M)


def newest_named(folder: Path) -> Path | None:
    """Returns the prefix that `tf.train.latest_checkpoint` returns, or None if the folder has no such file.

    Raises CheckpointError if the file is no text with such a name, or names a checkpoint that does not exist. Raises
    OSError if it cannot be read.
    """
    file = folder / FILE_NAME
    if not file.is_file():
        return None
    try:
        named = _NEWEST.search(read_text(file))
    except ValueError as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    if named is None:
        raise CheckpointError(f'{file} names no checkpoint; expected a line model_checkpoint_path: "…"')
    # A relative path begins in the folder of the file.
    prefix = folder / _unescaped(named[1])
    if not files_of(prefix):
        raise CheckpointError(
            f"{file} names {prefix}, which does not exist; restore it, or give the path of another one"
        )
    return prefix


def _unescaped(literal: str) -> str:
    found: bytes = ast.literal_eval("b" + "".join(one if one.isascii() else _escaped(one) for one in literal))
    return found.decode()


def _escaped(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode())
