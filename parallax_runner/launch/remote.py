"""Commands for another host: what the remote shell is given, and what the process there reads on its input."""

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from parallax_runner.launch import on_host
from parallax_runner.launch.manual import secret

# Where the host's name goes in a remote shell; otherwise it comes last.
HOST = "{host}"
# What a process on another host needs of this one's environment; what is particular to a machine stays behind.
PASSED_ON = ("PYTHON", "TF_", "HOROVOD_", "NCCL_", "XDG_", "PARALLAX_")
# What no process there needs, and would travel unencrypted; and what each process has from its own scheduler.
KEPT_HERE = (secret.VARIABLE, secret.REDIS_PASSWORD, "TF_CONFIG")


class RemoteCommand(NamedTuple):
    """An argument list for this machine, and the input that it gets."""

    argv: list[str]
    said: bytes


def passed_on(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that go with a process to another host."""
    return {name: value for name, value in environ.items() if name.startswith(PASSED_ON) and name not in KEPT_HERE}


def start_command(
    remote_shell: str, host: str, *, argv: Sequence[str], env: Mapping[str, str], cwd: str
) -> RemoteCommand:
    """What starts `argv` on `host`, in the folder `cwd`, with `env` on top of what the remote shell gives there."""
    return _on_host(remote_shell, host, "start", {"cwd": cwd, "env": dict(env), "argv": list(argv)})


def check_command(
    remote_shell: str, host: str, *, tokens: Sequence[str], cwd: str, driver: tuple[str, int]
) -> RemoteCommand:
    """What tells of `host` whether it sees the files `tokens`, has `cwd` and can connect to the driver."""
    return _on_host(remote_shell, host, "check", {"cwd": cwd, "tokens": list(tokens), "driver": list(driver)})


def _on_host(remote_shell: str, host: str, what: str, told: dict[str, Any]) -> RemoteCommand:
    # The remote shell joins its arguments by blanks and lets a shell split them again.
    command = shlex.join([sys.executable, "-I", "-S", on_host.__file__, what])
    words = shlex.split(remote_shell)
    words = [word.replace(HOST, host) for word in words] if HOST in remote_shell else [*words, host]
    return RemoteCommand([*words, command], json.dumps(told).encode())
