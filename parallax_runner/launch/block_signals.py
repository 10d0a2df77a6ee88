"""Blocks a batch system's signals, then executes the given command. Run by path:
`python -I -S block_signals.py COMMAND…`.

Slurm ends a job by sending SIGTERM to all its processes at once, and may first send SIGUSR1 or SIGUSR2 to all of them
as a warning. Only the driver may act on these signals: it makes the ranks save a checkpoint. The ranks, and the
programs that started them, must stay alive until the checkpoint is saved.
"""

import os
import signal
import sys

BLOCK_SIGNALS = (sys.executable, "-I", "-S", __file__)

if __name__ == "__main__":
    # The signals are blocked, not ignored: a handler that the command installs would replace SIG_IGN, but does not
    # unblock a signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})
    os.execvp(sys.argv[1], sys.argv[1:])
