"""The secret that the processes of a rendezvous share. It is never passed on a command line."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

from parallax_runner.errors import LaunchError
from parallax_runner.files.shared import read_private

VARIABLE = "PARALLAX_RENDEZVOUS_SECRET"
# The variable that contains the password of the Redis server, if the rendezvous uses one.
REDIS_PASSWORD = "PARALLAX_REDIS_PASSWORD"
FILE_NAME = "secret"
LEAST_LENGTH = 16
# The file is refused if it is longer.
MOST_LENGTH = 4096


def from_environment() -> bytes:
    """Returns the secret. Raises LaunchError if the variable is not set, or if the secret is too short."""
    value = os.environ.get(VARIABLE, "")
    if len(value) < LEAST_LENGTH:
        wrong = "is not set" if not value else f"has {len(value)} characters"
        raise LaunchError(
            f"{VARIABLE} {wrong}: expected the same secret of at least {LEAST_LENGTH} characters in the environment "
            "of the driver and of all workers and servers; generate one with `openssl rand -hex 16`"
        )
    return value.encode()


def of_folder(folder: Path) -> bytes:
    """Returns the secret from the environment variable if it is set, otherwise from the file in `folder`. The first
    process creates the folder and the file.

    Raises LaunchError if the folder or the file belongs to another user, if other users can write to the folder or read
    the file, if the file is a link or contains no secret, or if the folder cannot be created.
    """
    try:
        if VARIABLE in os.environ:
            folder.mkdir(parents=True, exist_ok=True)
            return from_environment()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return _in_file(folder / FILE_NAME)
    except OSError as error:
        raise LaunchError(
            f"cluster.rendezvous: {error.filename or folder}: {error.strerror}; expected a folder that only this user "
            f"can write to, and in it a file that no other user can read (chmod 600), or {VARIABLE} in the environment"
        ) from error


def _in_file(path: Path) -> bytes:
    """Returns the secret in a file. Raises OSError if another user can have written the file, because this user would
    then do what the other one says."""
    if not os.path.lexists(path):
        _make(path)
    found = read_private(path, MOST_LENGTH)
    if len(found) < LEAST_LENGTH:
        raise OSError(
            errno.EINVAL, f"it has {len(found)} characters instead of at least {LEAST_LENGTH}: remove it", str(path)
        )
    return found


def _make(path: Path) -> None:
    """Creates the file atomically if it does not exist. If several processes do this at once, one of them wins."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_hex(16).encode())
        try:
            os.link(partial, path)
        except FileExistsError:
            return
    finally:
        partial.unlink()
