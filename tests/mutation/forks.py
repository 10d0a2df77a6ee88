"""Recording in a process that was forked from one of another test."""

from __future__ import annotations

import coverage


def record_anew() -> None:
    """Records what follows under the context that stands in this process's environment now."""
    inherited = coverage.Coverage.current()
    if inherited is not None:
        inherited.stop()
    coverage.process_startup(force=True)
