"""Prints the message for an exception that ends the process, and chooses the exit status."""

import signal
import sys
import traceback

from parallax_runner.errors import ParallaxError
from parallax_runner.files.credentials import masked
from parallax_runner.process.limits import explained

# The exit statuses of a process ended by Ctrl-C, SIGTERM, the loss of its terminal, or Slurm's warning.
INTERRUPTED = tuple(
    128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
)


def tell(error: BaseException) -> int:
    """Prints a message about the exception `error`, if it has one, and returns the exit status."""
    error = explained(error)
    if isinstance(error, ParallaxError):
        print(f"parallax_runner: {error}", file=sys.stderr)
        return error.exit_status
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    print(masked("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    return 1
