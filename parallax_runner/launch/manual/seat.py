"""Stands, on the driver's machine, for a worker or server that runs in a process that somebody else has started.

Run as `python -m parallax_runner.launch.manual.seat`; it is told on its input what to start where. It ends as that
worker or server ends, and when it is ended itself, so is the other.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from parallax_runner.launch.manual.channel import Channel

# The process that stands by is gone; it did not start the command, and has said why.
LOST, REFUSED = 255, 254


def sit(told: dict[str, Any]) -> int:
    """The exit status of what was started."""
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
        print(f"{name} cannot be told what to start: {error}", flush=True)
        return LOST
    if ended is None:
        print(f"{name} is gone: the process that stood by was killed, or its machine is lost", flush=True)
        return LOST
    return int(ended["exit_status"])


if __name__ == "__main__":
    status = sit(json.load(sys.stdin))
    if status < 0:  # ended by a signal: so does this process
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    sys.exit(status)
