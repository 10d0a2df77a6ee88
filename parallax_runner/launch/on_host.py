"""The program that the driver runs on another host: `python -I -S on_host.py WHAT`, with details on stdin. WHAT is
`start`, `check` or `memory`.

This file is run by its path. Environment variables are passed on stdin, because every user of that host could read the
secret on the command line.
"""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

CONNECT_TIMEOUT_SECS = 5.0
PROC = Path("/proc")


def start(cwd: str, env: dict[str, str], argv: list[str]) -> None:
    """Executes the command `argv` in place of this program, in the folder `cwd`, with `env` added to the variables of
    the remote shell."""
    os.chdir(cwd)
    os.execvpe(argv[0], argv, {**os.environ, **env})


def check(cwd: str, tokens: list[str], driver: list[Any]) -> dict[str, Any]:
    """Checks this host. Returns the files in `tokens` that this host does not see, or to whose folders it cannot write,
    and whether the folder `cwd` exists. Also returns the error if this host cannot connect to the driver."""
    return {
        "host": socket.gethostname(),
        "unseen": [token for token in tokens if not Path(token).is_file()],
        "unwritable": [token for token in tokens if not os.access(Path(token).parent, os.W_OK)],
        "has_cwd": os.path.isdir(cwd),
        "control": _reach(driver[0], driver[1]),
    }


def memory() -> dict[str, Any]:
    """Returns what this host's kernel says about memory that ran out."""
    return {"memory_kills": memory_kills()}


def memory_kills(proc: Path = PROC) -> int | None:
    """Returns how many processes the kernel has ended because memory ran out, in all control groups, or None if it does
    not say. `proc` is the folder of the kernel's files."""
    return kernel_number(proc / "vmstat", "oom_kill")


def peak_bytes(process: str = "self", proc: Path = PROC) -> int | None:
    """Returns the peak memory of a process, which is named by its id, or None if there is no such process."""
    peak_kb = kernel_number(proc / process / "status", "VmHWM:")
    return None if peak_kb is None else 1024 * peak_kb


def kernel_number(file: Path, key: str) -> int | None:
    """Returns the number after a key at the beginning of a line, or None if there is no such file or line."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    words = next((line.split() for line in lines if line.split()[:1] == [key]), None)
    return None if words is None else int(words[1])


def _reach(address: str, port: int) -> str | None:
    try:
        socket.create_connection((address, port), timeout=CONNECT_TIMEOUT_SECS).close()
    except OSError as error:
        return str(error)
    return None


if __name__ == "__main__":
    told = json.load(sys.stdin)
    if sys.argv[1] == "start":
        start(**told)
    answer = memory() if sys.argv[1] == "memory" else check(**told)
    print(json.dumps(answer), flush=True)
