"""FIFOs, sockets and devices where a file is expected: refused at once, by each key that names a file."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from parallax_runner.checkpoints import checkpoint_files
from parallax_runner.checkpoints.start import find_start
from parallax_runner.config.resource_info import read_hosts
from parallax_runner.data import text
from parallax_runner.errors import CheckpointError, ConfigError, DataError
from parallax_runner.files.access import unreadable
from parallax_runner.files.regular import kind_of, read_regular
from parallax_runner.planning.cost import measured
from parallax_runner.track.mlflow.store_check import check_store

# To open a FIFO waits for the other end, as it would for ever.
pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def test_what_is_no_file(fifo: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "socket"))
        assert kind_of(tmp_path / "socket") == "a socket"
    (tmp_path / "link").symlink_to(fifo)
    assert kind_of(tmp_path / "link") == kind_of(fifo) == "a FIFO"
    assert kind_of("/dev/zero") == "a device"
    assert kind_of(tmp_path) is kind_of(tmp_path / "none") is kind_of(__file__) is None
    with pytest.raises(OSError, match="it is a FIFO, not a regular file"):
        read_regular(fifo)


def load_text(path: Path) -> object:
    return text.load(
        path=str(path), vocab_size=9, sequence_length=2, validation_examples=0, seed=1, cache_dir=str(path.parent)
    )


@pytest.mark.parametrize(
    ("read", "error", "message"),
    [
        (load_text, DataError, "fifo: expected only files and folders, but this is a FIFO"),
        (lambda fifo: load_text(fifo.parent), DataError, "fifo: expected only files and folders, but this is a FIFO"),
        (lambda fifo: read_hosts(str(fifo)), ConfigError, "fifo: cannot read the hosts .* it is a FIFO"),
        (measured.load, OSError, "it is a FIFO"),
        (lambda fifo: check_store(f"sqlite:///{fifo}", "trials"), ConfigError, "it is a FIFO"),
        (lambda fifo: _resumed(fifo.parent), CheckpointError, "it is a FIFO"),
    ],
    ids=["data.path", "folder", "cluster.resource_info", "simulate.profile", "tracking.uri", "ckpt.resume"],
)
def test_who_reads_refuses(read: Callable[[Path], object], error: type[Exception], message: str, fifo: Path) -> None:
    with pytest.raises(error, match=message):
        read(fifo)


def _resumed(folder: Path) -> None:
    prefix = checkpoint_files.prefix_of(folder, 5)
    (folder / "fifo").rename(checkpoint_files.sidecar_path(prefix))
    find_start(str(prefix), folder)


def test_the_configuration_is_refused(fifo: Path) -> None:
    assert unreadable(str(fifo)) == "expected a file or a folder, but this is a FIFO"
    assert unreadable(__file__) is None
