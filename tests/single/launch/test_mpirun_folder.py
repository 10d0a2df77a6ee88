"""Where mpirun's own files go, and who may choose another place."""

from pathlib import Path

import pytest

from parallax_runner.errors import LaunchError
from parallax_runner.launch.mpirun_folder import make_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder


def test_each_has_a_folder_of_its_own(temporary: Path) -> None:
    first, second = make_folder(["/opt/bin/mpirun"], {}), make_folder(["mpirun"], {})
    assert first != second
    assert {first, second} == {str(folder) for folder in temporary.iterdir()}


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
