"""A copy of the checkout that faults are put into, with a virtual environment of its own.

The environment has the copy's package installed, so that every process that a test starts imports the broken module,
whatever its folder and environment variables are. The checkout itself stays as it is when the tool is stopped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutation.faults import Fault
from tests.mutation.places import COPY, ROOT


def make_copy() -> Path:
    """Makes the copy equal to the files of the checkout that git does not ignore; returns its folder."""
    COPY.mkdir(parents=True, exist_ok=True)
    files = _listed("--cached", "--others", "--exclude-standard") - _listed("--deleted")
    for folder in {Path(file).parts[0] for file in files}:
        old = COPY / folder
        shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    for file in files:
        (COPY / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, COPY / file, follow_symlinks=False)
    path = os.pathsep.join([str(ROOT / ".tools" / "uv" / "bin"), os.environ["PATH"]])
    subprocess.run([COPY / "scripts" / "setup"], check=True, env=os.environ | {"PATH": path})
    # Compiled by content: a fault and the module may have the same size and time.
    compile_all = [
        "-m",
        "compileall",
        "-q",
        "--invalidation-mode",
        "checked-hash",
        "parallax_runner",
        "models",
        "tests",
    ]
    subprocess.run([python(), *compile_all], check=False, cwd=COPY)
    return COPY


def python() -> Path:
    """The copy's interpreter."""
    return COPY / ".venv" / "bin" / "python"


@contextmanager
def broken_by(fault: Fault) -> Iterator[None]:
    """Puts the fault into the copy for the block. Raises ValueError where the checkout's module does not have its
    text."""
    source = (ROOT / fault.file).read_text(encoding="utf-8")
    broken = fault.applied_to(source)
    place = COPY / fault.file
    place.write_text(broken, encoding="utf-8")
    try:
        yield
    finally:
        place.write_text(source, encoding="utf-8")


def _listed(*options: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", "-z", *options], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(filter(None, listed.stdout.split("\0")))
