"""Blocks a batch system's signals, then becomes the given command. Run by path as `python -I -S deaf.py COMMAND…`.

Slurm ends a job with SIGTERM to all its processes at once, and may warn all of them with SIGUSR1 or SIGUSR2 before.
Only the driver must act on these signals: it makes the ranks save a checkpoint. Until then the ranks and the programs
that started them must stay alive.
"""

import os
import signal
import sys

DEAF = (sys.executable, "-I", "-S", __file__)

if __name__ == "__main__":
    # A handler that the command installs would replace SIG_IGN, but does not unblock a signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})
    os.execvp(sys.argv[1], sys.argv[1:])
