"""Reads files in folders to which other users may write. Imports nothing from the project.

Such a user can put anything in the place of a file: a link to another file, a FIFO, a device, or an endless file. All
checks are made on the opened descriptor, because the path can be replaced between a check and an opening.
"""

import errno
import os
import stat
from pathlib import Path

# What an own folder and an own secret may not allow: others write to the folder, and others read or write the file.
_WRITE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_ANYTHING_BY_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_shared(path: Path, most_bytes: int) -> bytes:
    """Returns the content of a regular file. Raises OSError if `path` is a link or anything else than a regular file,
    or if it is longer than `most_bytes`."""
    return _read(_open(path), path, most_bytes)


def read_private(path: Path, most_bytes: int) -> bytes:
    """Returns the content of a file that only this user can have written.

    Raises the errors of `read_shared`, and PermissionError with the reason if the folder or the file belongs to another
    user, if others can write to the folder, or if others can read or write the file.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_owner(os.fstat(folder), path.parent, _WRITE_BY_OTHERS, "other users can write to this folder")
        descriptor = _open(path, folder)
    finally:
        os.close(folder)
    try:
        _check_owner(os.fstat(descriptor), path, _ANYTHING_BY_OTHERS, "other users can read or write this file")
    except BaseException:
        os.close(descriptor)
        raise
    return _read(descriptor, path, most_bytes)


def check_own_folder(path: Path) -> None:
    """Raises PermissionError with the reason if `path` is a link, belongs to another user, or if others can write to
    it. Only this user, or the administrator, can then have written the files in it."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(errno.EPERM, "it is not a folder", os.fspath(path))
    _check_owner(found, path, _WRITE_BY_OTHERS, "other users can write to this folder")


def is_regular(path: Path) -> bool:
    """Returns whether there is a regular file at `path`. A link is none."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _open(path: Path, folder: int | None = None) -> int:
    """Opens the file `path`, or the file of that name in the opened folder. Does not wait for the other end of a
    FIFO."""
    name = path if folder is None else path.name
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise OSError(error.errno, reason, os.fspath(path)) from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))


def _read(descriptor: int, path: Path, most_bytes: int) -> bytes:
    with open(descriptor, "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes", os.fspath(path))
    return content


def _check_owner(found: os.stat_result, path: Path, forbidden: int, reason: str) -> None:
    if found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"it belongs to another user (uid {found.st_uid})", os.fspath(path))
    if found.st_mode & forbidden:
        raise PermissionError(errno.EPERM, reason, os.fspath(path))
