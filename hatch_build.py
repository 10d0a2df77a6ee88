"""Compiles what the runner preloads into the processes of a run, when it is installed; editable installations too."""

import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = ("parallax_runner/launch/bind_address.c", "parallax_runner/launch/distinct_seeds.c")
# Not by the name of the Python module beside it, which Python would take it for.
LIBRARY = "parallax_runner/launch/libpreloaded.so"
# A C++ compiler is there in any case: Horovod is built with it.
COMPILERS = (["c++"], ["g++"], ["clang++"])


class Compile(BuildHookInterface):
    """Leaves the library beside its source for an editable installation. For a wheel it writes nothing into the
    checkout, which may be read-only, or build wheels for other machines at the same time."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel is built."""
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        library = Path(self.root, LIBRARY)
        if version == "editable":
            new = library.with_name(f".{library.name}.{os.getpid()}")
            try:
                self._compile(new)
                new.replace(library)  # not in place: a run may have it loaded
            finally:
                new.unlink(missing_ok=True)
            return
        self._folder = tempfile.TemporaryDirectory()  # until this process, or `finalize`, removes it
        new = Path(self._folder.name, library.name)
        self._compile(new)
        build_data["force_include"][str(new)] = LIBRARY

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called when the wheel is built."""
        if version != "editable":
            self._folder.cleanup()

    def _compile(self, library: Path) -> None:
        flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared"]
        # The C++ compiler forgets `-x c` after each source.
        sources = [word for source in SOURCES for word in ("-x", "c", str(Path(self.root, source)))]
        subprocess.run([*compiler(), *flags, "-o", str(library), *sources, "-ldl"], check=True)


def compiler() -> list[str]:
    """Its command; `CXX` goes before what is on PATH."""
    for command in (shlex.split(os.environ.get("CXX", "")), *COMPILERS):
        if command and shutil.which(command[0]):
            return command
    raise SystemExit(
        "a C++ compiler is missing: install one (Debian and Ubuntu: apt-get install g++), or name it by CXX"
    )
