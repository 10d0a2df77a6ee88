"""Asks the kernel to signal this process when the driver exits, then executes the given command.

Run this file by its path: `python -I -S guard.py DRIVER_PID SIGNAL COMMAND…`. This program is used instead of Popen's
preexec_fn, because TensorFlow may already have started threads in the driver. In a process with threads, Python code
between fork and exec can deadlock.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent(signal_number: int, parent_pid: int) -> None:
    """Asks the kernel to send `signal_number` to this process when its parent exits. Exits if the parent has already
    exited."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit(1)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]), int(sys.argv[1]))
    os.execvp(sys.argv[3], sys.argv[3:])
