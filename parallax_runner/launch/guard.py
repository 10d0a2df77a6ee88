"""Becomes the command it is given, after asking the kernel to end it when the driver ends.

Run by path as `python -I -S guard.py DRIVER_PID SIGNAL COMMAND…`. A small program instead of Popen's preexec_fn,
because the driver has TensorFlow's threads by then, and Python code between fork and exec may deadlock among threads.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent(signal_number: int, parent_pid: int) -> None:
    """Asks the kernel to send `signal_number` to this process when its parent ends; exits if it has ended already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit(1)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]), int(sys.argv[1]))
    os.execvp(sys.argv[3], sys.argv[3:])
