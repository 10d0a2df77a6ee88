"""Runs commands as users other than root, who need no names."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIRST, SECOND = 61001, 61002

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


def as_user(uid: int, argv: Sequence[str], folder: Path) -> list[str]:
    """Returns the command that runs `argv` as the user, in a mount namespace in which all users can reach the
    interpreter and the checkout. `folder` is an empty folder for the mounts."""
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *argv]
    lines = [*_mounts(folder), f"exec {shlex.join(become)}"]
    return ["unshare", "--mount", "sh", "-c", "\n".join(("set -e", *lines))]


def _mounts(folder: Path) -> Iterator[str]:
    """Yields shell lines that replace each closed folder above the interpreter or the checkout by one that shows only
    these."""
    needed = {Path(os.path.realpath(path)) for path in (sys.executable, sys.prefix, sys.base_prefix, ROOT)}
    closed = {parent for path in needed for parent in path.parents if parent.stat().st_mode & 0o005 != 0o005}
    outermost = [path for path in closed if not closed & set(path.parents)]
    for number, top in enumerate(sorted(outermost)):
        stage = folder / f"mount{number}"
        for path in sorted(needed):
            if top in path.parents and path.is_dir():
                inside = shlex.quote(str(stage / path.relative_to(top)))
                yield f"mkdir -p -m 755 {inside}"
                yield f"mount --bind {shlex.quote(str(path))} {inside}"
        yield f"mount --rbind {shlex.quote(str(stage))} {shlex.quote(str(top))}"
