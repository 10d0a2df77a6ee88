"""Which parameters of Open MPI a user has set, wherever that may be done."""

from pathlib import Path

import pytest

from parallax_runner.launch.mpirun.mca import words_of_user


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("HOME", str(folder))
    return folder


def test_on_the_command_line_and_by_a_variable() -> None:
    words = words_of_user("openmpi", ["/opt/bin/mpirun", "--mca", "pml", "ob1"], {"OMPI_MCA_btl": "tcp,self"})
    assert {"pml", "btl"} <= words


@pytest.mark.parametrize("name", ["home/.openmpi/mca-params.conf", "opt/etc/openmpi-mca-params.conf"])
def test_in_a_file_of_the_user_or_of_the_installation(name: str, tmp_path: Path) -> None:
    settings, argv = tmp_path / name, [str(tmp_path / "opt/bin/mpirun")]
    settings.parent.mkdir(parents=True)
    settings.write_text("# btl = tcp\npml=ob1\n")
    words = words_of_user("openmpi", argv, {})
    assert "pml" in words and "btl" not in words
    assert "pml" not in words_of_user("prte", argv, {})


def test_in_files_that_the_command_line_names(tmp_path: Path) -> None:
    (tmp_path / "a.conf").write_text("pml = ob1\n")
    (tmp_path / "b.conf").write_text("-mca btl tcp,self\n")
    argv = ["mpirun", "--tune", f"{tmp_path / 'a.conf'},{tmp_path / 'b.conf'}"]
    assert {"pml", "btl"} <= words_of_user("openmpi", argv, {})


def test_a_file_that_is_not_there_says_nothing() -> None:
    assert words_of_user("openmpi", ["mpirun", "--tune", "/nowhere/a.conf"], {}) == {
        "mpirun",
        "--tune",
        "/nowhere/a.conf",
    }
