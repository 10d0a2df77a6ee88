"""Asks the kernel to end this process when the driver ends, then becomes the given command.

Run by path as `python -I -S guard.py DRIVER_PID SIGNAL COMMAND…`. This program replaces Popen's preexec_fn: the driver
has TensorFlow's threads by then, and in a process with threads, Python code between fork and exec may deadlock.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent(signal_number: int, parent_pid: int) -> None:
    """Asks the kernel to send `signal_number` to this process when its parent ends. Exits if the parent has ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit(1)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]), int(sys.argv[1]))
    os.execvp(sys.argv[3], sys.argv[3:])
