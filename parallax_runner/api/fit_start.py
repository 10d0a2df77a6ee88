"""Decides how a call of `fit` begins if its checkpoint folder has already been used."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallax_runner.api import fit_result
from parallax_runner.checkpoints.checkpoint_files import Sidecar, read_sidecar, readable
from parallax_runner.config.actions import action_of
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.epoch_state import EpochState
from parallax_runner.driver.report import tell_notes
from parallax_runner.driver.resumable_epochs import ResumableEpochs
from parallax_runner.errors import ConfigError, Setting

AUTO, NEVER = "auto", "never"
REMEDY = "choose another run_dir (or ckpt.dir), or set ckpt.resume=never"


@dataclass(frozen=True)
class Call:
    """A call of `fit`. `number` is counted from 1 among the calls of the script that use `folder` for their
    checkpoints. The call trains the epochs `first` to `epochs` - 1, with `epoch_steps` steps each."""

    folder: Path
    number: int
    first: int
    epochs: int
    epoch_steps: int

    @property
    def run(self) -> dict[str, int]:
        """The numbers that a finished run and a repeated call have in common."""
        return {"first": self.first, "epochs": self.epochs, "epoch_steps": self.epoch_steps}

    @property
    def steps(self) -> int:
        """The number of steps of the whole run."""
        return (self.epochs - self.first) * self.epoch_steps

    @property
    def stem(self) -> Path:
        """The common start of the paths of the call's result."""
        return fit_result.stem_of(self.folder, self.number)


def is_finished(call: Call, config: RunConfig, model: Any) -> bool:
    """Returns whether another process has already finished this call, so its result can be returned. Prints a line if
    so."""
    newest = _newest(call.folder)
    may_be_finished = action_of(config).trains and config.ckpt.resume == AUTO
    if not may_be_finished or newest is None or _call_of(newest) < call.number:
        return False
    run = fit_result.run_of(call.stem, model)
    if run is None or not run.items() >= call.run.items():
        return False
    print(
        f"parallax_runner: fit returns the result of the finished run in {call.folder} without training; to train "
        f"again, {REMEDY}",
        file=sys.stderr,
    )
    return True


def with_resume(config: RunConfig, call: Call) -> RunConfig:
    """Returns the configuration, with `ckpt.resume=never` if `ckpt.resume` is `auto` and the newest checkpoint is one
    of an earlier call. A call does not resume from it, because it continues from the weights that the model now has.

    Raises ConfigError if the newest checkpoint belongs to a later call, to other epochs, or to a later epoch.
    """
    newest = _newest(call.folder)
    if config.ckpt.resume != AUTO or newest is None:
        return config
    if _call_of(newest) < call.number:
        return dataclasses.replace(config, ckpt=dataclasses.replace(config.ckpt, resume=NEVER))
    _check(newest, call)
    return config


def resume_epochs(epochs: ResumableEpochs, prefix: Path, step: int) -> None:
    """Continues the epochs at the checkpoint `prefix` of `step`. If its sidecar does not fit, prints a note."""
    state = EpochState.of(read_sidecar(prefix).epoch)
    if state is not None and epochs.fits(state):
        epochs.resume(state, step)
        return
    reason = (
        "does not contain the state of an epoch of fit"
        if state is None
        else f"belongs to a run with initial_epoch={state.first} and {state.steps} steps per epoch"
    )
    tell_notes(
        [
            f"the checkpoint {prefix} {reason}, so the callbacks start fresh, and the history begins with the steps "
            "after this checkpoint"
        ]
    )


def _check(newest: Sidecar, call: Call) -> None:
    number = _call_of(newest)
    if number > call.number:
        raise ConfigError(
            f"{call.folder}: the newest checkpoint belongs to call {number} of fit in this folder, but call "
            f"{call.number} has other epochs, other steps or another model than before; {REMEDY}"
        )
    state = EpochState.of(newest.epoch)
    if state is not None and state.first != call.first:
        raise ConfigError(f"the checkpoints in {call.folder} belong to a run with initial_epoch={state.first}").about(
            Setting.of("initial_epoch", call.first, where="fit"),
            remedy=f"pass initial_epoch={state.first}, because a run continues at its checkpoint, or {REMEDY}",
        )
    if newest.step > call.steps:
        raise ConfigError(
            f"this is {call.steps} steps, but the run in {call.folder} is already at step {newest.step}; {REMEDY}"
        ).about(Setting.of("epochs", call.epochs, where="fit"))


def _newest(folder: Path) -> Sidecar | None:
    try:
        return next(reversed(readable(folder).values()), None)
    except OSError:  # the search for the checkpoint to resume from reports it
        return None


def _call_of(sidecar: Sidecar) -> int:
    """Returns the number of the call that has written a checkpoint. The checkpoint of a run without `fit` has none."""
    state = EpochState.of(sidecar.epoch)
    return 1 if state is None else state.call
