"""Compiles what the runner preloads into the processes of a run, when it is installed; editable installations too."""

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "parallax_runner/launch/bind_address.c"
# Not by the name of the Python module beside it, which Python would take it for.
LIBRARY = "parallax_runner/launch/libbind_address.so"
# A C++ compiler is there in any case: Horovod is built with it.
COMPILERS = (["c++"], ["g++"], ["clang++"])


class Compile(BuildHookInterface):
    """Leaves the library beside its source, from where the wheel takes it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel is built."""
        library = Path(self.root, LIBRARY)
        new = library.with_name(f".{library.name}.{os.getpid()}")
        flags = ["-x", "c", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared"]
        try:
            subprocess.run([*compiler(), *flags, "-o", str(new), str(Path(self.root, SOURCE)), "-ldl"], check=True)
            new.replace(library)  # not in place: a run may have it loaded
        finally:
            new.unlink(missing_ok=True)
        build_data["artifacts"].append(f"/{LIBRARY}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def compiler() -> list[str]:
    """Its command; `CXX` goes before what is on PATH."""
    for command in (shlex.split(os.environ.get("CXX", "")), *COMPILERS):
        if command and shutil.which(command[0]):
            return command
    raise SystemExit(
        "a C++ compiler is missing: install one (Debian and Ubuntu: apt-get install g++), or name it by CXX"
    )
