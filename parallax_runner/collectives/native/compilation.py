"""Compiles the library of the native exchanges. hatch_build.py loads this file without the package around it, so it
imports only the standard library."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

SOURCES = Path(__file__).with_name("src")
# The flags with which TensorFlow's own wheels for Linux are compiled (tf.sysconfig.get_compile_flags()).
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=1", "-DEIGEN_MAX_ALIGN_BYTES=64")
COMPILERS = ("c++", "g++", "clang++")
# What provides TensorFlow.
TENSORFLOW = ("tensorflow", "tensorflow-cpu")


class CompileError(Exception):
    """The compiler failed. The message is its first line about an error."""


def find_compiler(environ: Mapping[str, str] = os.environ) -> list[str] | None:
    """Returns the command of the C++ compiler, or None if there is none. `CXX` comes before what is on PATH."""
    for command in (shlex.split(environ.get("CXX", "")), *([name] for name in COMPILERS)):
        if command and shutil.which(command[0], path=environ.get("PATH")):
            return command
    return None


def tensorflow_folder() -> Path | None:
    """Returns TensorFlow's folder without importing TensorFlow, or None if it is not installed."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def tensorflow_version() -> str:
    """Returns the version of the installed TensorFlow, or "none"."""
    for package in TENSORFLOW:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "none"


def packaged_name(tensorflow: str) -> str:
    """Returns the name of the library in a wheel. It works only with this version of TensorFlow."""
    return f"libcollectives-tensorflow-{tensorflow}.so"


def compile_library(made: Path, *, compiler: Sequence[str], tensorflow: Path, mpi: Path, rpath: str) -> None:
    """Writes the library `made`, which finds MPI in the folder `rpath`. Compiles one source per core at a time.

    `tensorflow` is the folder of the package. `mpi` is a folder with `include/mpi.h` and `lib/libmpi.so`. Raises
    CompileError if the compiler fails, and OSError if nothing can be written.
    """
    include = ["-isystem", str(tensorflow / "include"), "-isystem", str(mpi / "include")]
    with tempfile.TemporaryDirectory(dir=made.parent, prefix=".compiling-") as folder:

        def compiled(source: Path) -> Path:
            made_object = Path(folder, f"{source.stem}.o")
            _run([*compiler, *FLAGS, "-pthread", *include, "-c", "-o", str(made_object), str(source)])
            return made_object

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            objects = [str(made_object) for made_object in threads.map(compiled, sorted(SOURCES.glob("*.cc")))]
        libraries = [f"-L{tensorflow}", "-l:libtensorflow_framework.so.2", f"-L{mpi / 'lib'}", "-lmpi"]
        new = Path(folder, made.name)
        _run([*compiler, "-shared", "-pthread", "-o", str(new), *objects, *libraries, f"-Wl,-rpath,{rpath}"])
        new.replace(made)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        lines = done.stderr.splitlines()
        raise CompileError(next((line for line in lines if "error" in line), done.stderr[:500]))
