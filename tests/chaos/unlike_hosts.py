"""Hosts that differ: another clock, another installation, full or read-only disks. Each host is a network namespace,
and what its processes see of the machine is changed in mount namespaces."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.hosts import network
from benchmarks.hosts.network import Host

# Replaces the interpreter on a host: its program is still found at its own path, so it finds its environment.
INTERPRETER = '#!/bin/bash\n{exports}\nexec -a "$0" {real} "$@"\n'
SHELL = Path(__file__).with_name("unlike_shell.py")
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"


def with_clock(folder: Path, offset: str) -> str:
    """Returns the commands that give the Python processes of a host another clock. `offset` is one of libfaketime, such
    as "-1d". Their monotonic clock is right."""
    return _with_interpreter(
        folder, f'export LD_PRELOAD="{FAKETIME} $LD_PRELOAD" FAKETIME={offset} FAKETIME_DONT_FAKE_MONOTONIC=1'
    )


def with_python_path(folder: Path, path: Path) -> str:
    """Returns the commands that let the Python processes of a host look for modules in `path` first."""
    return _with_interpreter(folder, f'export PYTHONPATH="{path}:$PYTHONPATH"')


def with_disk(at: str, options: str) -> str:
    """Returns the commands that put a disk of its own at the path `at` of a host. `options` are those of tmpfs."""
    return f"mount -t tmpfs -o {options} tmpfs {shlex.quote(at)}"


def full(at: str) -> str:
    """Returns the commands that put a full disk at a path of a host."""
    return f"{with_disk(at, 'size=64k')} && {{ cat /dev/zero > {at}/filled 2>/dev/null; true; }}"


def _with_interpreter(folder: Path, exports: str) -> str:
    own = Path(os.path.realpath(sys.executable))
    copy, wrapper = folder / own.name, folder / "interpreter"
    wrapper.write_text(INTERPRETER.format(exports=exports, real=shlex.quote(str(copy))))
    wrapper.chmod(0o755)
    copy.touch()
    return f"mount --bind {own} {copy} && mount --bind {wrapper} {own}"


def remote_shell(hosts: Sequence[Host], folder: Path, setups: Mapping[str, str]) -> str:
    """Returns the command that replaces ssh between these hosts. `setups` are the commands by address that change what
    the processes of a host see."""
    (folder / "setups.json").write_text(json.dumps(dict(setups)))
    agent = network.agent_command(hosts)
    return f"{sys.executable} -I -S {SHELL} {folder / 'setups.json'} {agent}"
