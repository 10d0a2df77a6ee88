"""Which errors name a limit of the process."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_runner.errors import DataError, LimitError
from parallax_runner.process import limits

OPENS_FILES = """
import sys
from parallax_runner.process.exit_status import tell
try:
    files = [open("/dev/null") for _ in range(100)]
except OSError as error:
    sys.exit(tell(error))
"""


def test_a_message_names_the_limit_of_files() -> None:
    command = f"ulimit -n 64; exec {sys.executable} -c '{OPENS_FILES}'"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == (
        "parallax_runner: OSError: [Errno 24] Too many open files: '/dev/null'; open files of a process: at most 64 "
        "(ulimit -n); raise this limit\n"
    )


@pytest.fixture
def all_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each limit is 2048, in its own unit of the kernel."""
    monkeypatch.setattr(resource, "getrlimit", lambda number: (2048, 2048))


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (RuntimeError("can't start new thread"), "at most 2048 (ulimit -u)"),
        (RuntimeError("can't start new thread"), "at most 2 KiB (ulimit -v)"),
        (OSError("14950 requested and 4064 written"), "at most 2 KiB (ulimit -f)"),
        (BlockingIOError(11, "Resource temporarily unavailable"), "at most 2048 (ulimit -u)"),
        (MemoryError(), "at most 2 KiB (ulimit -v)"),
        (OSError(12, "Cannot allocate memory"), "at most 2 KiB (ulimit -v)"),
        (ImportError("x.so: failed to map segment from shared object"), "at most 2 KiB (ulimit -v)"),
        (OSError(27, "File too large"), "at most 2 KiB (ulimit -f)"),
        (RuntimeError("File size limit exceeded signal terminated program cc1plus"), "at most 2 KiB (ulimit -f)"),
        (RuntimeError("CPU time limit exceeded signal terminated program cc1plus"), "at most 2048 s (ulimit -t)"),
    ],
)
def test_each_limit(error: Exception, named: str, all_limited: None) -> None:
    told = limits.explained(error)
    assert isinstance(told, LimitError) and told.__cause__ is error
    assert str(error) in str(told) and named in str(told)


def test_other_errors_stay(all_limited: None) -> None:
    for error in (ValueError("x"), DataError("Too many open files"), KeyboardInterrupt()):
        assert limits.explained(error) is error
    assert limits.limit_in("Segmentation fault") is None


def test_a_limit_that_does_not_exist_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda number: (resource.RLIM_INFINITY,) * 2)
    assert limits.limit_in("MemoryError") is None
    assert limits.tight_limit() is None


def test_a_tight_limit(all_limited: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """2048 processes are enough for a user with few, so only the address space is tight."""
    assert limits.tight_limit() == "address space of a process: at most 2 KiB (ulimit -v); raise this limit"
    monkeypatch.setattr(limits, "_tasks_of_user", lambda: 2000)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "at most 2048 (ulimit -u)" in str(limits.tight_limit())


READS_A_CHECKPOINT = """
import sys
from pathlib import Path
from parallax_runner.checkpoints.checkpoint_files import FileState, fault_of_file
from parallax_runner.data.checksums import damage_of, write_sums
from parallax_runner.errors import LimitError
folder = Path(sys.argv[1])
write_sums(folder)
state = FileState(bytes=1, sha256="")
names = {"file": lambda: fault_of_file(folder / "file", state), "sums": lambda: damage_of(folder)}
files = []
try:
    while True:
        files.append(open("/dev/null"))
except OSError:
    pass
for name, read in names.items():
    try:
        print(name, read())
    except LimitError as error:
        print(name, "limit", "ulimit -n" in str(error))
"""


def test_an_intact_file_that_a_limit_hides_is_not_damaged(tmp_path: Path) -> None:
    """Otherwise a run would begin from an older checkpoint, and a cache would be deleted."""
    (tmp_path / "file").write_text("x")
    command = ["bash", "-c", 'ulimit -n 64; exec "$@"', "bash", sys.executable, "-c", READS_A_CHECKPOINT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "file limit True\nsums limit True\n", done.stderr
