"""Files in a folder to which another user may write: whatever stands there is read without harm, or refused."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from parallax_runner.files.shared import is_regular, read_private, read_shared

# To open a FIFO waits for the other end, as it would for ever.
pytestmark = pytest.mark.timeout(30)
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make files of another user")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(b"content")
    path.chmod(0o600)
    return path


def test_a_file_is_read(own: Path) -> None:
    assert read_shared(own, 7) == read_private(own, 7) == b"content"
    assert is_regular(own)


@pytest.mark.parametrize("read", [read_shared, read_private])
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("link", "it is a symbolic link"),
        ("/dev/zero", "it is a symbolic link"),
        ("fifo", "it is not a regular file"),
        ("folder", "it is not a regular file"),
        ("socket", "No such device or address"),
        ("long", "it is larger than 7 bytes"),
        ("none", "No such file"),
    ],
)
def test_what_is_refused(read: object, kind: str, reason: str, own: Path, tmp_path: Path) -> None:
    path = tmp_path / "other"
    if kind in ("link", "/dev/zero"):
        path.symlink_to(own if kind == "link" else kind)
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "folder":
        path.mkdir(0o700)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    elif kind == "long":
        path.write_bytes(b"contents")
        path.chmod(0o600)
    assert callable(read)
    with pytest.raises(OSError, match=f"{reason}.*other"):
        read(path, 7)
    assert is_regular(path) == (kind == "long")


def test_a_device_is_not_regular() -> None:
    with pytest.raises(OSError, match="it is not a regular file"):
        read_shared(Path("/dev/zero"), 7)


@pytest.mark.parametrize(
    ("folder_mode", "mode", "reason"),
    [
        (0o700, 0o640, "other users can read or write this file"),
        (0o700, 0o602, "other users can read or write this file"),
        (0o770, 0o600, "other users can write to this folder"),
        (0o1777, 0o600, "other users can write to this folder"),
    ],
)
def test_what_others_may_do_is_refused(folder_mode: int, mode: int, reason: str, own: Path) -> None:
    own.parent.chmod(folder_mode)
    own.chmod(mode)
    with pytest.raises(PermissionError, match=reason):
        read_private(own, 7)
    assert read_shared(own, 7) == b"content"


@needs_root
@pytest.mark.parametrize("which", ["file", "folder"])
def test_what_belongs_to_another_user_is_refused(which: str, own: Path) -> None:
    os.chown(own if which == "file" else own.parent, NOBODY, NOBODY)
    with pytest.raises(PermissionError, match=f"it belongs to another user .uid {NOBODY}"):
        read_private(own, 7)
