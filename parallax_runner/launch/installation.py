"""What is installed on a host. Each process tells the driver when it starts, and the driver compares it with its
own installation."""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Mapping
from pathlib import Path

from parallax_runner.collectives.chosen import backend

# Maps each name that messages use to the packages that can provide it. One of these packages is installed.
PACKAGES = {
    "TensorFlow": ("tensorflow", "tensorflow-cpu"),
    "Keras": ("keras",),
    "parallax_runner": ("parallax-runner",),
}
# Two checkouts of this project can have the same version.
OWN_FILES = "source files of parallax_runner with the fingerprint"
PACKAGE = Path(__file__).parents[1]
SOURCES = ("*.py", "*.cc", "*.h")


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that must be the same in all processes, and a fingerprint of
    this project's own source files. A missing package has the version "none"."""
    exchanges = backend()
    if exchanges.package is None:
        return dict(_of_every_run())
    return _of_every_run() | {exchanges.title: _version_of((exchanges.package,))}


@functools.cache
def _of_every_run() -> dict[str, str]:
    packages = {name: _version_of(names) for name, names in PACKAGES.items()}
    return {"Python": platform.python_version(), **packages, OWN_FILES: _fingerprint(PACKAGE)}


def _version_of(names: tuple[str, ...]) -> str:
    from importlib import metadata  # This import takes 30 ms, unless TensorFlow has already imported the module.

    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "none"


def fault_of(found: Mapping[str, object], own: Mapping[str, str]) -> str | None:
    """Returns a description of the first difference between the versions of a process and those of the driver, or None
    if there is no difference."""
    for name, expected in own.items():
        if found.get(name) != expected:
            return (
                f"it has {name} {found.get(name)}, but the driver has {name} {expected}: all hosts need the same "
                "installation"
            )
    return None


def _fingerprint(package: Path) -> str:
    """Returns a hash of the package's source files: their names and their content."""
    content = hashlib.sha256()
    for path in sorted(path for pattern in SOURCES for path in package.rglob(pattern)):
        content.update(f"{path.relative_to(package)}\n".encode())
        content.update(path.read_bytes())
    return content.hexdigest()[:12]
