"""Records in `best.json`, next to the checkpoints, which checkpoint has the best validation result.

Only the driver has the mean over ranks, so the driver writes the file. The chief reads the file before it deletes old
checkpoints.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path

from parallax_runner.checkpoints.checkpoint_files import PARTIAL, prefix_of, sidecar_path
from parallax_runner.config.objective import VALIDATION_LOSS, Goal
from parallax_runner.errors import CheckpointError
from parallax_runner.files.plain import read_object, reason_of, remove
from parallax_runner.files.whole import write_whole

log = logging.getLogger(__name__)

FILE_NAME = "best.json"
MOST_STEPS = 2**63 - 1  # the largest value of TensorFlow's global step


@dataclass(frozen=True)
class Best:
    """The best validation result so far.

    It covers all validations up to step `validated_step`. `value` is the best result, and `step` is the step of its
    checkpoint. `objective` names the metric that is compared.
    """

    validated_step: int
    step: int | None = None
    value: float | None = None
    objective: str = VALIDATION_LOSS.name


def read_best(folder: Path) -> Best | None:
    """Reads `best.json`. Returns None if no validation result has been recorded, or if the file is damaged (see
    `fault_of_best`)."""
    try:
        return _read(folder)
    except CheckpointError:
        return None


def fault_of_best(folder: Path) -> str | None:
    """Returns the reason why `best.json` is unusable, or None if the file is usable or does not exist."""
    try:
        _read(folder)
    except CheckpointError as error:
        return str(error)
    return None


def note_validated(folder: Path, step: int, value: float, goal: Goal = VALIDATION_LOSS) -> None:
    """Records the result of a validation after `step` steps.

    The result can become the best result only if a checkpoint of that step exists or is being written. A recorded best
    result for another objective is dropped. Raises CheckpointError if the file cannot be written.
    """
    fault = fault_of_best(folder)
    if fault is not None:
        log.warning("%s", fault)
    old = read_best(folder)
    if old is None or old.objective != goal.name:
        old = Best(validated_step=step, objective=goal.name)
    is_saved = sidecar_path(prefix_of(folder, step)).exists() or (folder / f"{PARTIAL}{step}").exists()
    is_better = math.isfinite(value) and (old.value is None or goal.is_better(value, old.value))
    new = dataclasses.replace(old, validated_step=step)
    if is_saved and is_better:
        new = dataclasses.replace(new, step=step, value=value)
    _write(folder, new)


def forget_later(folder: Path, step: int) -> None:
    """Forgets the results of steps after `step`, because a run that starts at `step` repeats these steps.

    Raises CheckpointError if the file cannot be written.
    """
    best = read_best(folder)
    if best is None or best.validated_step <= step:
        return
    if best.step is not None and best.step <= step:
        _write(folder, dataclasses.replace(best, validated_step=step))
    else:
        _write(folder, None)


def best_checkpoint(folder: Path) -> Path | None:
    """Returns the prefix of the best checkpoint, or None if there is none yet."""
    best = read_best(folder)
    if best is None or best.step is None:
        return None
    prefix = prefix_of(folder, best.step)
    return prefix if sidecar_path(prefix).exists() else None


def not_to_forget(folder: Path, validated: set[int]) -> set[int]:
    """Returns the steps whose checkpoints must be kept: the best step, and the steps in `validated` whose results are
    not recorded yet."""
    best = read_best(folder)
    if best is None:
        return set(validated)
    waiting = {step for step in validated if step > best.validated_step}
    return waiting if best.step is None else waiting | {best.step}


def _read(folder: Path) -> Best | None:
    path = folder / FILE_NAME
    if not os.path.lexists(path):
        return None
    try:
        found = read_object(path)[1]
        if "validation_loss" in found:  # written by version 0.1.0
            found["value"] = found.pop("validation_loss")
        best = Best(**found)
        _check(best)
    except (OSError, ValueError, TypeError, OverflowError) as error:
        why = reason_of(error) if isinstance(error, OSError) else str(error)
        raise CheckpointError(
            f"{path} is unusable: {why}. The best checkpoint is unknown, and the comparison starts over at the next "
            "validation"
        ) from error
    return best


def _check(best: Best) -> None:
    """Raises ValueError if a field does not match `Best`."""
    steps = [best.validated_step] if best.step is None else [best.validated_step, best.step]
    is_step = [type(step) is int and 0 <= step <= MOST_STEPS for step in steps]
    has_value = type(best.value) in (int, float) and math.isfinite(best.value or 0)
    if not all(is_step) or not isinstance(best.objective, str) or (has_value != (best.step is not None)):
        raise ValueError(f"its content is invalid: {dataclasses.asdict(best)}")


def _write(folder: Path, best: Best | None) -> None:
    path = folder / FILE_NAME
    try:
        if best is None or path.is_dir():
            remove(path)
        if best is not None:
            write_whole(path, json.dumps(dataclasses.asdict(best)))
    except OSError as error:
        raise CheckpointError(f"{path} could not be written: {error.strerror or error}") from error
