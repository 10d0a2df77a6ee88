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
    """Writes the library `made`, which finds MPI in the folder `rpath`.

    `tensorflow` is the folder of the package. `mpi` is a folder with `include/mpi.h` and `lib/libmpi.so`. Raises
    CompileError if the compiler fails, and OSError if nothing can be written.
    """
    # All sources are one translation unit: most of the time goes into TensorFlow's headers, which are then read once.
    unit = "".join(f'#include "{source}"\n' for source in sorted(SOURCES.glob("*.cc")))
    with tempfile.TemporaryDirectory(dir=made.parent, prefix=".compiling-") as folder:
        new = Path(folder, made.name)
        command = [
            *(*compiler, *FLAGS, "-shared", "-pthread", "-o", str(new)),
            *("-isystem", str(tensorflow / "include"), "-isystem", str(mpi / "include")),
            *("-x", "c++", "-", "-x", "none"),
            *(f"-L{tensorflow}", "-l:libtensorflow_framework.so.2", f"-L{mpi / 'lib'}", "-lmpi"),
            f"-Wl,-rpath,{rpath}",
        ]
        done = subprocess.run(command, input=unit, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = done.stderr.splitlines()
            raise CompileError(next((line for line in lines if "error" in line), done.stderr[:500]))
        new.replace(made)
