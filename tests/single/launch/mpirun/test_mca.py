"""Which parameters of Open MPI a user has set, wherever that may be done."""

import os
import subprocess
from pathlib import Path

import pytest

from parallax_runner.errors import LaunchError
from parallax_runner.launch.job import Job
from parallax_runner.launch.mpirun.command import worker_command
from parallax_runner.launch.mpirun.mca import settings_of_user, words_of_user
from parallax_runner.launch.mpirun.mpirun_launcher import Mpirun, check_mpi_is_chosen

MODULE = {"OMPI_MCA_pml": "ucx", "PRTE_MCA_plm": "ssh", "PMIX_MCA_gds": "hash", "OMPI_COMM_WORLD_SIZE": "1"}


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


def test_the_settings_of_a_sites_module_can_be_told(home: Path) -> None:
    assert settings_of_user(["/opt/bin/mpirun"], MODULE) == [
        "OMPI_MCA_pml=ucx",
        "PMIX_MCA_gds=hash",
        "PRTE_MCA_plm=ssh",
    ]
    settings = home / ".openmpi" / "mca-params.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text("# nothing yet\n\n")
    assert settings_of_user(["/opt/bin/mpirun"], {}) == []
    settings.write_text("pml = ucx\n")
    assert settings_of_user(["/opt/bin/mpirun"], {}) == ["~/.openmpi/mca-params.conf"]


@pytest.mark.parametrize(
    "setting", ["OMPI_MCA_pml=ucx", "OMPI_MCA_btl=openib", "OMPI_MCA_coll=hcoll", "PMIX_MCA_gds=nope"]
)
def test_a_part_that_this_open_mpi_lacks_is_told_by_the_variable(
    setting: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, _, value = setting.partition("=")
    monkeypatch.setenv(name, value)
    argv, env, _, _ = worker_command(Job(run_dir=Path("helloworld"), workers=2, worker_module="mpi4py.bench"))
    with (
        open(tmp_path / "output", "w+") as output,
        subprocess.Popen(argv, env=os.environ | env, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        # After a failed MPI_Init, this mpirun sometimes does not end.
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
        output.seek(0)
        said = output.read()
    any_started = name.startswith("OMPI")  # mpirun itself fails with the other one
    told = Mpirun().start_hint(said, any_started=any_started)
    assert "MPI did not start" in told and setting in told


def test_settings_are_not_blamed_for_another_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_MCA_pml", "ob1")
    assert Mpirun().start_hint("[1,0]<stderr>: ValueError: x", any_started=True) == ""


def test_ranks_under_mpirun_cannot_use_gloo() -> None:
    check_mpi_is_chosen({"HOROVOD_CONTROLLER": "mpi"})
    with pytest.raises(LaunchError, match=r"HOROVOD_CONTROLLER=gloo: .*unset HOROVOD_CONTROLLER"):
        check_mpi_is_chosen({"HOROVOD_CONTROLLER": "gloo"})
