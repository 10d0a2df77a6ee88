"""Commands for another host: the arguments of the remote shell, and the standard input of the process on that host."""

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from parallax_runner.collectives.chosen import backend
from parallax_runner.launch import on_host
from parallax_runner.launch.launchers.manual import secret

# The placeholder for the host's name in the remote shell's command. If the command has no placeholder, the name is
# appended.
HOST = "{host}"
# Prefixes of the variables that are sent to a process on another host. Variables that are specific to a machine are not
# sent.
PASSED_ON = ("PYTHON", "TF_", "NCCL_", "NVIDIA_TF32_OVERRIDE", "XDG_", "PARALLAX_")
# Variables that are not sent to other hosts: secrets, which other hosts do not need and which would be sent
# unencrypted, and a variable that each scheduler sets itself.
KEPT_HERE = (secret.VARIABLE, secret.REDIS_PASSWORD, "TF_CONFIG")


class RemoteCommand(NamedTuple):
    """The arguments of a command that runs on this machine, and its standard input."""

    argv: list[str]
    said: bytes


def passed_on(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the variables that are sent to a process on another host."""
    prefixes = (*PASSED_ON, *backend().variables)
    return {name: value for name, value in environ.items() if name.startswith(prefixes) and name not in KEPT_HERE}


def start_command(
    remote_shell: str, host: str, *, argv: Sequence[str], env: Mapping[str, str], cwd: str
) -> RemoteCommand:
    """Returns the command that starts `argv` on `host` in the folder `cwd`, with `env` added to the remote shell's
    variables."""
    return _on_host(remote_shell, host, "start", {"cwd": cwd, "env": dict(env), "argv": list(argv)})


def check_command(
    remote_shell: str, host: str, *, tokens: Sequence[str], cwd: str, driver: tuple[str, int]
) -> RemoteCommand:
    """Returns the command that checks whether `host` sees the files `tokens`, has `cwd` and can connect to the
    driver."""
    return _on_host(remote_shell, host, "check", {"cwd": cwd, "tokens": list(tokens), "driver": list(driver)})


def memory_command(remote_shell: str, host: str) -> RemoteCommand:
    """Returns the command that asks the kernel of `host` about memory that ran out."""
    return _on_host(remote_shell, host, "memory", {})


def _on_host(remote_shell: str, host: str, what: str, told: dict[str, Any]) -> RemoteCommand:
    # The remote shell joins its arguments with spaces, and a shell on the host splits them again.
    command = shlex.join([sys.executable, "-I", "-S", on_host.__file__, what])
    words = shlex.split(remote_shell)
    words = [word.replace(HOST, host) for word in words] if HOST in remote_shell else [*words, host]
    return RemoteCommand([*words, command], json.dumps(told).encode())
