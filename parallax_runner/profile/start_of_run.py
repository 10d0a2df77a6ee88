"""Prepares the profile before the processes start: removes old files, and warns about steps that are already done."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from parallax_runner.config.schema import ProfileConfig
from parallax_runner.profile.profiled_steps import listed_until
from parallax_runner.profile.run_metadata_files import DERIVED, run_metadata_files

log = logging.getLogger(__name__)


def prepare(profile: ProfileConfig, *, first_step: int) -> None:
    """Prepares the profile for an attempt that starts after step `first_step`.

    Removes the RunMetadata of later steps, because the attempt runs these steps again. If a trace mixed ranks of this
    attempt with ranks of an earlier attempt, it would show a step that never happened. Does nothing if profiling is
    off.
    """
    if profile.name == "off":
        return
    assert profile.dir is not None
    folder = Path(profile.dir)
    found = run_metadata_files(folder)
    for step, by_rank in found.items():
        if step > first_step:
            for path in by_rank.values():
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # the folder is not empty
                    path.parent.rmdir()
    for name in DERIVED:
        (folder / name).unlink(missing_ok=True)
    missed = [step for step in listed_until(profile, first_step) if step not in found]
    if missed:
        log.warning(
            "steps %s of profile.%s are not profiled, because the run starts after step %d",
            ", ".join(map(str, missed)),
            profile.name,
            first_step,
        )
