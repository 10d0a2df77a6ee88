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


@functools.cache
def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that must be the same in all processes, and a fingerprint of
    this project's own source files. A missing package has the version "none"."""
    from importlib import metadata  # This import takes 30 ms, unless TensorFlow has already imported the module.

    def version_of(names: tuple[str, ...]) -> str:
        for name in names:
            try:
                return metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        return "none"

    packages = {name: version_of(names) for name, names in PACKAGES.items()}
    exchanges = backend()
    if exchanges.package is not None:
        packages[exchanges.title] = version_of((exchanges.package,))
    return {"Python": platform.python_version(), **packages, OWN_FILES: _fingerprint(PACKAGE)}


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
    for path in sorted(package.rglob("*.py")):
        content.update(f"{path.relative_to(package)}\n".encode())
        content.update(path.read_bytes())
    return content.hexdigest()[:12]
