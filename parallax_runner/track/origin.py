"""Determines the origin of a run: the user, the command, the commit and the version of this program."""

from __future__ import annotations

import functools
import getpass
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import parallax_runner

GIT_TIMEOUT_SECS = 5.0
# Prefixes of the command-line arguments that a sweep adds for Hydra (config/master.py).
OF_SWEEPS = ("hydra.sweep.dir=", "hydra.job.config.override_dirname.exclude_keys=")


def origin_of(folder: Path) -> dict[str, str]:
    """Returns tags for the user, the command line, the git state of `folder` (where the command was started) and the
    version."""
    return {"user": user_name(), "command": command_line(), **git_tags(folder), **program().tags()}


@dataclass(frozen=True)
class Program:
    """The version of this program. `commit` is the commit of the git checkout from which the program runs, with
    `-dirty` appended if tracked files have changed. `commit` is None for an installed package."""

    version: str
    commit: str | None

    def __str__(self) -> str:
        """Formats the version as `--version` prints it."""
        return f"parallax_runner {self.version}" + ("" if self.commit is None else f", commit {self.commit}")

    def tags(self) -> dict[str, str]:
        """Returns the tags that are recorded with a run."""
        commit = {} if self.commit is None else {"parallax.commit": self.commit}
        return {"parallax.version": self.version, **commit}


@functools.cache  # this process runs the files as they were when it started
def program() -> Program:
    """Returns the version of the program that runs in this process."""
    return program_in(Path(parallax_runner.__file__).resolve().parents[1])


def program_in(checkout: Path) -> Program:
    """Returns the version of the program whose package is in the folder `checkout`. A package that is installed inside
    the checkout of another project has no commit."""
    version, top = parallax_runner.__version__, _git(checkout, "rev-parse", "--show-toplevel")
    tags = git_tags(checkout) if top is not None and Path(top).resolve() == checkout.resolve() else {}
    if not tags:
        return Program(version, None)
    return Program(version, tags["git.commit"] + ("-dirty" if tags["git.dirty"] == "true" else ""))


def command_line() -> str:
    """Returns the command line as a user would type it, without the arguments that a sweep adds."""
    words = [word for word in sys.argv[1:] if not word.startswith(OF_SWEEPS)]
    return shlex.join(["python", "-m", "parallax_runner", *words])


def git_tags(folder: Path) -> dict[str, str]:
    """Returns the commit and whether tracked files have changed. Returns an empty dict outside a repository or if git
    is missing."""
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


def user_name() -> str:
    """Returns the name of the user who runs this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # the uid has no user name, as in some containers
        return "unknown"
