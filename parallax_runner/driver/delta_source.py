"""Checkpoints with a delta as sources of weights for `action=evaluate`, `predict` and `export`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from parallax_runner.checkpoints.delta_files import delta_path
from parallax_runner.checkpoints.origin import FOLDER, ORIGIN
from parallax_runner.checkpoints.start import RESUME
from parallax_runner.errors import CheckpointError, Setting
from parallax_runner.files.plain import remove
from parallax_runner.files.whole import write_whole

if TYPE_CHECKING:
    from parallax_runner.checkpoints.delta_files import Delta


def checkpoint_of(base: Path, delta: Delta, run_dir: Path) -> Path:
    """Returns the prefix of a checkpoint with the values of a checkpoint and its delta. Its step is that of the delta.
    The slots of the optimizer are those of the checkpoint, because a delta has none, and no step uses them.

    A run that still trains may replace the delta meanwhile. Then its new delta is taken. Raises CheckpointError if the
    files cannot be read or written.
    """
    from parallax_runner.checkpoints.delta_merge import with_delta
    from parallax_runner.checkpoints.delta_start import whole_delta

    while True:
        folder = run_dir / FOLDER
        remove(folder)
        try:
            prefix = with_delta(base, delta, folder)
        except OSError as error:
            newer = whole_delta(base)
            if newer is None or newer == delta:
                raise CheckpointError(f"{delta_path(base).name} cannot be applied: {error}").about(
                    Setting.of(RESUME, base), remedy=f"use the checkpoint without its delta: {RESUME}={base}"
                ) from error
            delta = newer
            continue
        write_whole(folder / ORIGIN, json.dumps({"path": str(delta_path(base).absolute().with_suffix(""))}) + "\n")
        print(f"parallax_runner: uses {base} with its delta, which is of step {delta.step}", file=sys.stderr)
        return prefix
