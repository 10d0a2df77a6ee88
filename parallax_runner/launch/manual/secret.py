"""The secret that the processes of a rendezvous share. It is never passed on a command line."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from parallax_runner.errors import LaunchError

VARIABLE = "PARALLAX_RENDEZVOUS_SECRET"
# The variable that contains the password of the Redis server, if the rendezvous uses one.
REDIS_PASSWORD = "PARALLAX_REDIS_PASSWORD"
FILE_NAME = "secret"
LEAST_LENGTH = 16


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
    process creates the file.

    Raises LaunchError if the file belongs to another user, if other users can read it, or if the folder cannot be
    created.
    """
    path = folder / FILE_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if VARIABLE in os.environ:
            return from_environment()
        if not path.exists():
            _make(path)
        found = path.stat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise LaunchError(
                f"{path}: expected a file that belongs to this user and that no other user can read (chmod 600), or "
                f"{VARIABLE} in the environment"
            )
        return path.read_bytes()
    except OSError as error:
        raise LaunchError(f"cluster.rendezvous: {path}: {error.strerror}") from error


def _make(path: Path) -> None:
    """Creates the file atomically if it does not exist. If several processes do this at once, one of them wins."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_hex(16).encode())
        try:
            os.link(partial, path)
        except FileExistsError:
            return
    finally:
        partial.unlink()
