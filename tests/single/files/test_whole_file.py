"""Small files are replaced whole, by whichever way the writing ends."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from parallax_runner.errors import is_of_storage
from parallax_runner.files import whole as whole_file
from parallax_runner.files.whole import write_whole


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_whole(path, "one\n")
    write_whole(path, "zwei «ü»\n")
    assert path.read_text(encoding="utf-8") == "zwei «ü»\n"
    assert os.listdir(tmp_path) == ["summary.json"]
    (tmp_path / "plain").write_text("")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_reader_sees_one_of_several_writers_whole(tmp_path: Path) -> None:
    path, texts = tmp_path / "summary.json", [letter * 100_000 for letter in "abc"]
    write_whole(path, texts[0])

    def write(text: str) -> None:
        for _ in range(20):
            write_whole(path, text)

    writers = [threading.Thread(target=write, args=(text,)) for text in texts]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_text() in texts
    for writer in writers:
        writer.join()
    assert os.listdir(tmp_path) == ["summary.json"]


def test_a_killed_writer_leaves_the_file_as_it_was_and_nothing_behind_the_next_one(tmp_path: Path) -> None:
    """Killed where the text is written and has not its name yet; the kernel has it on the disk by then."""
    path = tmp_path / "summary.json"
    write_whole(path, "before")
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom parallax_runner.files.whole import write_whole\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_whole(Path(sys.argv[1]), 'after')\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_text() == "before"
    assert len(os.listdir(tmp_path)) == 2
    others = [f".other.json.{'0' * 32}", ".summary.json.mine"]
    for other in others:
        (tmp_path / other).write_text("")
    write_whole(path, "later")
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "summary.json"])


def test_what_a_living_writer_writes_is_no_leftover(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom parallax_runner.files.whole import write_whole\n"
        "os.fsync = lambda _: (print('written', flush=True), sys.stdin.readline())\n"
        "write_whole(Path(sys.argv[1]), 'slow')\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as slow:
        assert slow.stdout is not None
        assert slow.stdout.readline() == "written\n"
        write_whole(path, "quick")
        assert path.read_text() == "quick"
        slow.communicate("go on\n")
    assert slow.returncode == 0
    assert path.read_text() == "slow"
    assert os.listdir(tmp_path) == ["summary.json"]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_no_obstacle(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(whole_file.fcntl, "flock", refuse)
    (tmp_path / f".summary.json.{'0' * 32}").write_text("")
    write_whole(tmp_path / "summary.json", "text")
    assert sorted(os.listdir(tmp_path)) == [f".summary.json.{'0' * 32}", "summary.json"]


def test_an_error_names_the_file_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    write_whole(path, "before")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as raised:
        write_whole(path, "after")
    assert raised.value.filename == str(path)
    assert is_of_storage(raised.value)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["summary.json"]
    (tmp_path / "folder").mkdir()
    monkeypatch.undo()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "folder", "")
