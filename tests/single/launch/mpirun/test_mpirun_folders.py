"""Where mpirun's own files go, and who may choose another place."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_runner.errors import LaunchError
from parallax_runner.launch.mpirun import folders as mpirun_folders
from parallax_runner.launch.mpirun.folders import SEGMENTS, TEMPORARY
from parallax_runner.launch.own_folder import OwnFolder, prefix, remove_left_over


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder


@pytest.fixture
def shared_memory(tmp_path: Path) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    return folder


def make_folder(argv: list[str], environ: dict[str, str]) -> str | None:
    made = mpirun_folders.make_folders(argv, environ, alone=False).get(TEMPORARY)
    return None if made is None else str(made.path)


def test_each_has_folders_of_its_own(temporary: Path, shared_memory: Path) -> None:
    made = [mpirun_folders.make_folders(["mpirun"], {}, shared_memory=shared_memory) for _ in range(2)]
    for variable, parent in ((TEMPORARY, temporary), (SEGMENTS, shared_memory)):
        folders = {folders[variable].path for folders in made}
        assert len(folders) == 2 and folders == set(parent.iterdir())
    for folders in made:
        for one in folders.values():
            (one.path / "sm_segment.vm.0.690c0001.0").touch()
            one.remove()
    assert [*temporary.iterdir(), *shared_memory.iterdir()] == []


def test_segments_where_the_user_has_them_or_on_other_hosts(shared_memory: Path) -> None:
    chosen = {"OMPI_MCA_btl_sm_backing_directory": "/scratch"}
    assert SEGMENTS not in mpirun_folders.make_folders(["mpirun"], chosen, shared_memory=shared_memory)
    assert SEGMENTS not in mpirun_folders.make_folders(["mpirun"], {}, alone=False, shared_memory=shared_memory)
    assert SEGMENTS not in mpirun_folders.make_folders(["mpirun"], {}, shared_memory=shared_memory / "missing")


@pytest.mark.parametrize("which", [TEMPORARY, SEGMENTS])
def test_the_next_start_removes_what_a_killed_driver_has_left_and_nothing_else(
    which: str, temporary: Path, shared_memory: Path
) -> None:
    parent = {TEMPORARY: temporary, SEGMENTS: shared_memory}[which]
    code = (
        "import os, pathlib, sys, time\n"
        "from parallax_runner.launch.own_folder import OwnFolder\n"
        "folder = OwnFolder.make(pathlib.Path(sys.argv[1]))\n"
        "(folder.path / 'sm_segment.vm.0.690c0001.0').touch()\n"
        "print(folder.path, flush=True)\n"
        "time.sleep(60)\n"
    )
    drivers = [subprocess.Popen([sys.executable, "-c", code, parent], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        killed, alive = (Path(one.stdout.readline().decode().strip()) for one in drivers)  # type: ignore[union-attr]
        foreign = parent / "sm_segment.vm.0.7cdc0001.0"
        foreign.touch()
        link = parent / f"{prefix()}link"
        link.symlink_to(foreign.parent)
        drivers[0].kill()
        drivers[0].wait()
        made = mpirun_folders.make_folders(["mpirun"], {}, shared_memory=shared_memory)
        assert not killed.exists()
        assert set(parent.iterdir()) == {alive, foreign, link, made[which].path}
        assert list(alive.iterdir()) == [alive / "sm_segment.vm.0.690c0001.0"]
    finally:
        for one in drivers:
            one.kill()
            one.communicate()


def test_folders_of_other_hosts_stay(shared_memory: Path) -> None:
    """Their locks may hold on their own host only."""
    others = [shared_memory / "parallax_runner-elsewhere-abcd_123", shared_memory / f"{prefix()}b-abcd_123"]
    mine = shared_memory / f"{prefix()}abcd_123"
    for folder in (*others, mine):
        folder.mkdir()
    remove_left_over(shared_memory)
    assert set(shared_memory.iterdir()) == set(others)


@pytest.mark.parametrize("number", [errno.EBADF, errno.ENOSYS, errno.ENOLCK])
def test_where_folders_cannot_be_locked_they_are_made_and_stay(
    number: int, shared_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)  # as NFS or Lustre answers, which are not here
    first, second = OwnFolder.make(shared_memory), OwnFolder.make(shared_memory)
    remove_left_over(shared_memory)
    assert set(shared_memory.iterdir()) == {first.path, second.path}
    first.remove()
    assert list(shared_memory.iterdir()) == [second.path]


def test_no_folder_for_segments_to_be_had(temporary: Path, tmp_path: Path) -> None:
    no_folder = tmp_path / "file"
    no_folder.touch()
    made = mpirun_folders.make_folders(["mpirun"], {}, shared_memory=no_folder)
    assert list(made) == [TEMPORARY]


def test_a_folder_chosen_on_the_command_line(temporary: Path) -> None:
    assert make_folder(["mpirun", "--prtemca", "prte_tmpdir_base", "/scratch"], {}) is None
    assert list(temporary.iterdir()) == []


def test_a_folder_chosen_by_a_variable() -> None:
    assert make_folder(["mpirun"], {"PRTE_MCA_prte_tmpdir_base": "/scratch"}) is None


@pytest.mark.parametrize("name", ["home/.prte/mca-params.conf", "opt/etc/prte-mca-params.conf"])
def test_a_folder_chosen_in_a_file(name: str, tmp_path: Path) -> None:
    settings, argv = tmp_path / name, [str(tmp_path / "opt/bin/mpirun")]
    settings.parent.mkdir(parents=True)
    settings.write_text("# prte_tmpdir_base = /scratch\n")
    assert make_folder(argv, {}) is not None
    settings.write_text("prte_tmpdir_base = /scratch\n")
    assert make_folder(argv, {}) is None


def test_no_folder_to_be_had(temporary: Path) -> None:
    temporary.rmdir()
    with pytest.raises(LaunchError, match=r"mpirun needs a folder for temporary files: .*No such file"):
        make_folder(["mpirun"], {})
