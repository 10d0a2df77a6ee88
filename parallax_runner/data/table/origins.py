"""Where each row of a stored table comes from: its file and its line. Messages about a row name them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from parallax_runner.data.table.array_file import ArrayFile, mapped
from parallax_runner.files.whole import write_whole

_FILES = "files.json"
_REGULAR = -1


def row_origin(folder: Path, part: str, row: int) -> tuple[str, int]:
    """Returns the file and the line, from 1 on, of a row of a part. `folder` is `StoredTable.folder`. In a file without
    lines, the line is the number of the row."""
    blocks = mapped(_blocks_path(folder, part))
    number = int(np.searchsorted(blocks[:, 0], row, side="right")) - 1
    first_row, file, first_line, lines_start = (int(value) for value in blocks[number])
    files = json.loads((folder / _FILES).read_text(encoding="utf-8"))
    within = row - first_row
    if lines_start == _REGULAR:
        return files[file], first_line + within
    return files[file], int(mapped(_lines_path(folder, part))[lines_start + within])


def write_files(folder: Path, files: Sequence[str]) -> None:
    """Writes the paths of the files, in the order of their numbers."""
    write_whole(folder / _FILES, json.dumps(list(files)))


class OriginWriter:
    """Records the origin of the rows of a part, block by block. Only blocks whose rows are not on consecutive lines
    have a number for each row."""

    def __init__(self, folder: Path, part: str) -> None:
        self._blocks = ArrayFile(_blocks_path(folder, part), np.dtype(np.int64), (4,))
        self._lines = ArrayFile(_lines_path(folder, part), np.dtype(np.int64))

    def append(self, first_row: int, file: int, first_line: int, lines: np.ndarray | None) -> None:
        """Records a block: its rows begin with `first_row` and are on `lines`, or from `first_line` on."""
        start = _REGULAR if lines is None else self._lines.rows
        self._blocks.append(np.array([[first_row, file, first_line, start]], dtype=np.int64))
        if lines is not None:
            self._lines.append(lines)

    def close(self) -> None:
        """Closes the files."""
        self._blocks.close()
        self._lines.close()


def _blocks_path(folder: Path, part: str) -> Path:
    return folder / f"{part}.blocks.npy"


def _lines_path(folder: Path, part: str) -> Path:
    return folder / f"{part}.lines.npy"
