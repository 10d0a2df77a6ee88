"""The program that the driver runs on another host: `python -I -S on_host.py start` or `check`, with details on stdin.

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
    print(json.dumps(check(**told)), flush=True)
