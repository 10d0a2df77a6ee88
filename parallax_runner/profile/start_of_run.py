"""Before the processes start: old files must not be taken for this run's, and steps that are over are named."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from parallax_runner.config.schema import ProfileConfig
from parallax_runner.profile.files import DERIVED, run_metadata_files
from parallax_runner.profile.steps import listed_until

log = logging.getLogger(__name__)


def prepare(profile: ProfileConfig, *, first_step: int) -> None:
    """Called before each attempt, which begins when `first_step` steps are done.

    Removes the RunMetadata of later steps: they will be done again, and a trace of which one rank is from this attempt
    and the other from an earlier one would show a step that never was. Does nothing if nothing is profiled.
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
                with contextlib.suppress(OSError):  # there is more in it
                    path.parent.rmdir()
    for name in DERIVED:
        (folder / name).unlink(missing_ok=True)
    missed = [step for step in listed_until(profile, first_step) if step not in found]
    if missed:
        log.warning(
            "not profiled: %s of profile.%s, since the run begins after step %d",
            ", ".join(map(str, missed)),
            profile.name,
            first_step,
        )
