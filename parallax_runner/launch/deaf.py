"""Becomes the command it is given, deaf to a batch system. Run by path as `python -I -S deaf.py COMMAND…`.

Slurm ends a job by SIGTERM to all of its processes at once, and may warn all of them by SIGUSR1 or SIGUSR2. Only the
driver must act on it: it has the ranks save a checkpoint, for which they and what starts them must live a while longer.
"""

import os
import signal
import sys

DEAF = (sys.executable, "-I", "-S", __file__)

if __name__ == "__main__":
    # A handler of the command's own would replace an ignored signal, but does not unblock it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})
    os.execvp(sys.argv[1], sys.argv[1:])
