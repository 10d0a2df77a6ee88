"""What a run writes never goes through a link that somebody placed in the run folder."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import parallax_runner
from parallax_runner.files.in_place import fault_of_place, open_in_place
from parallax_runner.files.link_or_copy import link_or_copy
from parallax_runner.files.whole import write_whole

# To open a FIFO waits for the other end, as it would for ever.
pytestmark = pytest.mark.timeout(30)
APPEND = os.O_WRONLY | os.O_APPEND


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("as it was\n")
    return path


def test_a_file_is_made_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for line in (b"one\n", b"two\n"):
        with open(open_in_place(path, APPEND), "ab") as file:
            file.write(line)
    assert path.read_text() == "one\ntwo\n"
    (tmp_path / "plain").write_text("")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    with open(open_in_place(path, os.O_WRONLY | os.O_TRUNC), "wb"):
        assert path.read_text() == ""


@pytest.mark.parametrize("flags", [APPEND, os.O_WRONLY | os.O_TRUNC, os.O_RDWR])
@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "fifo with a reader", "device"])
def test_what_is_no_file_is_refused_at_once(kind: str, flags: int, tmp_path: Path, victim: Path) -> None:
    path = tmp_path / "log"
    reader = None
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "new")
    elif kind == "device":
        path.symlink_to("/dev/zero")
        path = Path("/dev/zero")
    else:
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if "reader" in kind else None
    with pytest.raises(OSError, match=r"remove it.*" + path.name) as raised:
        open_in_place(path, flags)
    assert fault_of_place(path) == raised.value.strerror
    assert victim.read_text() == "as it was\n"
    assert not (tmp_path / "new").exists()
    if reader is not None:
        os.close(reader)


def test_a_folder_in_the_place_of_a_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        open_in_place(tmp_path, APPEND)
    assert fault_of_place(tmp_path) is None


def test_a_file_that_is_replaced_whole_takes_the_place_of_a_link(tmp_path: Path, victim: Path) -> None:
    path = tmp_path / "plan.json"
    path.symlink_to(victim)
    write_whole(path, "{}")
    assert (path.is_symlink(), path.read_text(), victim.read_text()) == (False, "{}", "as it was\n")


def test_a_copy_is_not_written_through_a_link(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "file").write_text("new")
    (tmp_path / "target").symlink_to(victim)
    with pytest.raises(FileExistsError):
        link_or_copy(tmp_path / "file", tmp_path / "target")
    assert victim.read_text() == "as it was\n"


# Who opens a file for writing without the helpers of `files`, and why that does not write through a link.
ALLOWED = {
    "files/in_place.py": "the helper",
    "files/whole.py": "the helper: the file is new",
    "files/locks.py": "the helper for locks: with O_NOFOLLOW",
    "files/regular.py": "only reads",
    "files/shared.py": "only reads",
    "launch/launchers/manual/secret.py": "the file is new",
    "checkpoints/publish.py": "in a new folder, which is then renamed",
    "export/checkpoints.py": "in a new folder, which is then renamed",
    "checkpoints/warm_start.py": "into memory",
    "data/stored_arrays.py": "in a new folder of this user alone",
    "data/strings.py": "in a new folder of this user alone",
    "data/table/fitted.py": "into memory",
    "data/table/array_file.py": "the file is new",
    "data/token_cache.py": "in a new folder, which is then renamed",
    "driver/supervise.py": "/dev/null",
    "process/terminal.py": "/dev/null",
    "track/mlflow/journal.py": "with O_NOFOLLOW",
    "sweep/ledger.py": "the ledger",
}
WRITES_A_PATH = {"savefig", "savetxt", "save", "savez", "savez_compressed"}
GUARDED = ("open_in_place(", "_open_log(")


def test_no_other_module_opens_a_file_for_writing() -> None:
    package = Path(parallax_runner.__file__).parent
    found = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        lines = list(_openings(ast.parse(path.read_text())))
        if lines and name not in ALLOWED:
            found[name] = lines
    assert found == {}


def _openings(tree: ast.AST) -> Iterator[str]:
    """Calls that open a file for writing, as far as they can be told from the source."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and any(is_one(node) for is_one in (_opens, _opens_descriptor, _writes_a_path)):
            yield ast.unparse(node)


def _opens(call: ast.Call) -> bool:
    if ast.unparse(call.func) not in ("open", "gzip.open", "io.open"):
        return False
    return _writes(call) and not ast.unparse(call.args[0]).startswith(GUARDED)


def _opens_descriptor(call: ast.Call) -> bool:
    flags = ast.unparse(call)
    return ast.unparse(call.func) == "os.open" and ("O_WRONLY" in flags or "O_RDWR" in flags)


def _writes_a_path(call: ast.Call) -> bool:
    called = ast.unparse(call.func)
    if called.endswith((".write_text", ".write_bytes")):
        return True
    gives_file = bool(call.args) and ast.unparse(call.args[0]) == "file"
    return called.startswith(("np.", "figure.")) and called.split(".")[-1] in WRITES_A_PATH and not gives_file


def _writes(call: ast.Call) -> bool:
    modes = [argument for argument in call.args[1:2] if isinstance(argument, ast.Constant)]
    modes += [word.value for word in call.keywords if word.arg == "mode" and isinstance(word.value, ast.Constant)]
    return any(set(str(mode.value)) & set("wax+") for mode in modes)
