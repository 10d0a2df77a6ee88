"""Lock files: one holder at a time, and what stands in the place of one is never waited for, followed or written to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from parallax_runner.data.cache_folder import CacheFolder
from parallax_runner.errors import LaunchError
from parallax_runner.files.locks import locked, open_to_lock
from parallax_runner.sweep import device
from parallax_runner.track.mlflow.store_lock import store_lock

pytestmark = pytest.mark.timeout(30)  # to open a FIFO waits for the other end

IN_PLACE: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "a link to a file": lambda path: path.symlink_to(path.with_name("theirs")),
    "a link to no file": lambda path: path.symlink_to(path.with_name("none")),
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.fixture(params=IN_PLACE)
def lock(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "theirs").write_text("theirs")
    path = tmp_path / "a.lock"
    IN_PLACE[request.param](path)
    return path


def test_what_is_no_regular_file_is_refused(lock: Path) -> None:
    with pytest.raises(OSError):
        open_to_lock(lock)
    with pytest.raises(OSError), locked(lock):
        pass
    assert lock.with_name("theirs").read_text() == "theirs"
    assert not lock.with_name("none").exists()


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path / "lock"):
        with pytest.raises(BlockingIOError), locked(tmp_path / "lock", wait=False):
            pass
        assert not os.get_inheritable(open_to_lock(tmp_path / "lock").fileno())
    with locked(tmp_path / "lock", wait=False):
        pass


def test_the_kernel_frees_it(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from parallax_runner.files.locks import locked\n"
        "with locked(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "lock"])
    with locked(tmp_path / "lock", wait=False):
        pass


def test_fifos_in_the_place_of_every_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "devices").mkdir()
    for name in ("devices/gpu_0.lock", ".mlflow.db.lock", ".tokens.lock"):
        os.mkfifo(tmp_path / name)
    monkeypatch.setattr(device, "detect_gpus", lambda: (0,))
    with pytest.raises(LaunchError, match=r"gpu_0\.lock cannot be locked: it is not a regular file; remove it"):
        device.own_gpu(tmp_path).__enter__()
    with pytest.raises(OSError, match="it is not a regular file"), store_lock(tmp_path / "mlflow.db"):
        pass
    with CacheFolder(tmp_path / "tokens", "tokenized text").alone():
        pass
