"""Blocks SIGTERM and SIGUSR1, then executes the given command. Run this file by its path: `python -I -S deaf.py
COMMAND…`.

Slurm ends a job by sending SIGTERM to all its processes at once, and can send all of them SIGUSR1 as a warning before
that. Only the driver may act on these signals: it makes the ranks save a checkpoint. Until the checkpoint is saved, the
ranks and the programs that started them must stay alive.
"""

import os
import signal
import sys

DEAF = (sys.executable, "-I", "-S", __file__)

if __name__ == "__main__":
    # SIG_IGN would not be enough: a handler that the command installs would replace it. A handler does not unblock a
    # signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    os.execvp(sys.argv[1], sys.argv[1:])
