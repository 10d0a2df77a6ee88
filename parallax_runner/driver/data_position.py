"""Decides where a resumed run begins to read its data. The position in a checkpoint belongs to the data on which the
checkpoint was trained."""

from __future__ import annotations

import os
from pathlib import Path

from parallax_runner.checkpoints.checkpoint_files import Sidecar, read_sidecar
from parallax_runner.config import frozen
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset
from parallax_runner.data.identity import Contents, differences, identity_of
from parallax_runner.driver import report
from parallax_runner.errors import CheckpointError, Setting
from parallax_runner.process.stage_times import stage

START = "start"  # the value of ckpt.position for a run that begins at the first example of its data


@stage("identify the data")
def identity_in(config: RunConfig, dataset: Dataset) -> Contents:
    """Returns the identity of the run's data. It is empty for a script, which reads its own data."""
    if config.model["_target_"] == frozen.SCRIPT:
        return Contents()
    return identity_of(config, dataset)


def settled_position(config: RunConfig, prefix: Path, identity: Contents) -> str:
    """Returns `start` if the run begins at the first example of its data, and `keep` or `auto` if it begins at the
    position in the checkpoint `prefix`.

    Raises CheckpointError if the data has changed since the checkpoint was written, and `ckpt.position` does not say
    how to continue.
    """
    sidecar, position = read_sidecar(prefix), config.ckpt.position
    changed = differences(sidecar.data, identity.training)
    if changed and position == "auto":
        raise _refusal(config, prefix, sidecar, changed)
    if position != START:
        return position
    is_same = bool(sidecar.data) and not changed
    if is_same and os.path.samefile(prefix.parent, config.ckpt.folder):
        # The same command has already begun this data, and was started again.
        report.tell_notes(
            [
                f"ckpt.position=start: checkpoint {prefix} of this run was trained on the same data, so the run "
                f"continues at example {sidecar.examples}"
            ]
        )
        return "keep"
    return START


def _refusal(config: RunConfig, prefix: Path, sidecar: Sidecar, changed: list[str]) -> CheckpointError:
    def setting(value: str) -> str:
        line = f"ckpt.position={value}"
        return f'overrides=["{line}"]' if frozen.is_fit(config) else line

    return CheckpointError(
        f"the training data has changed since checkpoint {prefix} was written ({'; '.join(changed)})."
    ).about(
        Setting.of("ckpt.resume", config.ckpt.resume),
        remedy=f"Set {setting('start')} to begin the new data at its first example, or {setting('keep')} to continue "
        f"at the checkpoint's position, example {sidecar.examples}; or restore the earlier data",
    )
