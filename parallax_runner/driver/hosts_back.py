"""Waits for a host that a restarted run cannot reach, for example because its connection is cut."""

from __future__ import annotations

import time
from collections.abc import Callable

from parallax_runner.driver.report import tell_notes
from parallax_runner.errors import LaunchError
from parallax_runner.launch.host_checks import RETURNS_SECS
from parallax_runner.launch.job import LaunchSpec

BETWEEN_SECS = 5.0


def when_back(make_spec: Callable[[], LaunchSpec], *, most_secs: float = RETURNS_SECS) -> LaunchSpec:
    """Returns the launch specification as soon as its hosts pass the check of the launcher. The hosts of an earlier
    attempt have passed it, so a host that fails it now may come back.

    Raises the LaunchError of the last check if a host still fails it after `most_secs`.
    """
    deadline = time.monotonic() + most_secs
    is_told = False
    while True:
        try:
            spec = make_spec()
            spec.launcher.check(spec.shared, lambda: False)
            return spec
        except LaunchError as error:
            if time.monotonic() + BETWEEN_SECS > deadline:
                raise
            if not is_told:
                tell_notes([f"{error}. The run waits for this host, for at most {most_secs / 60:.0f} min"])
            is_told = True
        time.sleep(BETWEEN_SECS)
