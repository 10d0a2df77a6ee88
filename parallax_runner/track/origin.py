"""Where a run comes from: the user, the command, the commit."""

from __future__ import annotations

import getpass
import shlex
import subprocess
import sys
from pathlib import Path

GIT_TIMEOUT_SECS = 5.0
# What a sweep adds for Hydra (config/master.py); the folder is a tag of its own.
OF_SWEEPS = ("hydra.sweep.dir=", "hydra.job.config.override_dirname.exclude_keys=")


def origin_of(folder: Path) -> dict[str, str]:
    """The user, the command line, and what git says of `folder`, the one the command was given in."""
    return {"user": _user(), "command": command_line(), **git_tags(folder)}


def command_line() -> str:
    """As one would type it, without what a sweep has added."""
    words = [word for word in sys.argv[1:] if not word.startswith(OF_SWEEPS)]
    return shlex.join(["python", "-m", "parallax_runner", *words])


def git_tags(folder: Path) -> dict[str, str]:
    """The commit, and whether files that git knows were changed; nothing outside a repository, or without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return {}
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {
        "git.commit": commit,
        "git.dirty": "unknown" if changed is None else str(bool(changed)).lower(),
    }


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), "--no-optional-locks", *arguments]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=GIT_TIMEOUT_SECS)
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip()


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no name for this number, as in some containers
        return "unknown"
