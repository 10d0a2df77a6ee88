"""Makes sure that this process and those that it starts have a home folder in their environment."""

from __future__ import annotations

import os
import pwd

from parallax_runner.process.changes import set_default

# The home folder that Linux distributions give to users without one. Nothing can be read from it or written to it.
NO_HOME = "/nonexistent"


def set_home() -> None:
    """Sets HOME for the run if it is not set, as in some containers and services. Otherwise, Open MPI refuses to start,
    and Python does not know the folder for caches if the user is unknown too."""
    set_default("HOME", _home_of_user())


def _home_of_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir or NO_HOME
    except KeyError:  # in a container, a user can have a number but no name
        return NO_HOME
