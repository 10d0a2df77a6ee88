"""A process on the driver's machine that represents a worker or server that the driver did not start.

Run as `python -m parallax_runner.launch.launchers.manual.remote_stand_in`. Its standard input specifies the command and
the process in which to start it. It exits with the exit status of that worker or server. If the stand-in is killed, the
worker or server is terminated too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from parallax_runner.launch.launchers.manual.channel import Channel

# Exit statuses. LOST: the standby process is gone. REFUSED: it did not start the command, and reported the reason.
LOST, REFUSED = 255, 254


def sit(told: dict[str, Any]) -> int:
    """Starts the command and returns its exit status."""
    name = told["name"]
    try:
        channel = Channel.connect(told["address"], told["secret"].encode())
        channel.send("start", **told["start"])
        answer = channel.receive() or {}
        if answer.get("kind") == "refused":
            print(f"{name}: {answer['reason']}", flush=True)
            return REFUSED
        ended = channel.receive()
    except (OSError, ValueError) as error:
        print(f"{name} cannot be reached to start the command: {error}", flush=True)
        return LOST
    if ended is None:
        print(f"{name} is gone: the standby process was killed, or its machine is lost", flush=True)
        return LOST
    return int(ended["exit_status"])


if __name__ == "__main__":
    status = sit(json.load(sys.stdin))
    if status < 0:  # a signal killed the command, so this process kills itself with the same signal
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    sys.exit(status)
