"""The folder of data on another disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parallax_runner.driver.hand_over import own_folder_in

KILLED = """
import os, signal, sys
from pathlib import Path
from parallax_runner.driver.hand_over import own_folder_in
with own_folder_in(Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_goes_however_the_run_ends(tmp_path: Path) -> None:
    cache = tmp_path / "not" / "there"
    with pytest.raises(KeyboardInterrupt), own_folder_in(cache) as folder:
        assert folder is not None
        (folder / "half").write_text("a file that is being written")
        raise KeyboardInterrupt
    assert list(cache.iterdir()) == []


def test_what_a_killed_driver_has_left_goes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    (killed,) = tmp_path.iterdir()
    (tmp_path / "mine").mkdir()
    with own_folder_in(tmp_path) as alive, own_folder_in(tmp_path) as other:
        assert alive is not None and other is not None
        assert {path.name for path in tmp_path.iterdir()} == {"mine", alive.name, other.name}
    assert not killed.exists()


def test_without_another_disk_there_is_none() -> None:
    with own_folder_in(None) as folder:
        assert folder is None
