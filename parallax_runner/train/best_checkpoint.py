"""Which checkpoint has the lowest validation loss: `best.json` beside the checkpoints.

The driver alone knows the mean over ranks and writes the file; the chief, who deletes old checkpoints, reads it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

from parallax_runner.errors import CheckpointError
from parallax_runner.train.checkpoint_files import PARTIAL, prefix_of, sidecar_path

FILE_NAME = "best.json"


@dataclass(frozen=True)
class Best:
    """All results up to `validated_step` are in; the lowest, `validation_loss`, is that of the checkpoint of `step`."""

    validated_step: int
    step: int | None = None
    validation_loss: float | None = None


def read_best(folder: Path) -> Best | None:
    """None where nothing was validated. Raises CheckpointError where the file is damaged."""
    path = folder / FILE_NAME
    try:
        return Best(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is unusable: {error}; delete it, and the next validation begins anew") from error


def note_validated(folder: Path, step: int, loss: float) -> None:
    """Notes the validation loss after `step` steps. It counts as the best only if the model of that step is saved.

    Raises CheckpointError where it cannot be written.
    """
    old = read_best(folder) or Best(validated_step=step)
    is_saved = sidecar_path(prefix_of(folder, step)).exists() or (folder / f"{PARTIAL}{step}").exists()
    is_lower = math.isfinite(loss) and (old.validation_loss is None or loss < old.validation_loss)
    new = Best(step, step, loss) if is_saved and is_lower else dataclasses.replace(old, validated_step=step)
    _write(folder, new)


def forget_later(folder: Path, step: int) -> None:
    """Takes back what was noted of steps beyond the one that a run starts from: it will do them again."""
    best = read_best(folder)
    if best is None or best.validated_step <= step:
        return
    if best.step is not None and best.step <= step:
        _write(folder, dataclasses.replace(best, validated_step=step))
    else:
        (folder / FILE_NAME).unlink()


def best_checkpoint(folder: Path) -> Path | None:
    """The prefix of the best checkpoint, None where there is none yet."""
    best = read_best(folder)
    if best is None or best.step is None:
        return None
    prefix = prefix_of(folder, best.step)
    return prefix if sidecar_path(prefix).exists() else None


def not_to_forget(folder: Path, validated: set[int]) -> set[int]:
    """Steps whose checkpoints must stay: the best, and those of `validated` whose result is not known yet."""
    best = read_best(folder)
    if best is None:
        return set(validated)
    waiting = {step for step in validated if step > best.validated_step}
    return waiting if best.step is None else waiting | {best.step}


def _write(folder: Path, best: Best) -> None:
    path = folder / FILE_NAME
    written = path.with_name(f".{FILE_NAME}")
    try:
        with written.open("w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(best), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(written, path)
    except OSError as error:
        raise CheckpointError(f"{path} could not be written: {error.strerror or error}") from error
