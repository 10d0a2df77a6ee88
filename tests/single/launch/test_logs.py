import os
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_runner.errors import ConfigError, LaunchError
from parallax_runner.launch.job import Command
from parallax_runner.launch.logs import TAIL_BYTES, LogFile, last_lines, log_path, redirect_logs, redirect_output
from parallax_runner.launch.spawn import spawn


def test_log_paths() -> None:
    assert log_path("/run", "server", 2) == Path("/run/logs/server_2.log")
    assert log_path("/run", "mpirun", 0) == Path("/run/logs/mpirun.log")


def test_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log) == ()
    log.write_text("".join(f"line {i}\n" for i in range(100)))
    assert last_lines(log, 2) == ("line 98", "line 99")
    log.write_bytes(b"x" * (2 * TAIL_BYTES) + b"\n\xffend")
    assert last_lines(log, 1) == ("\ufffdend",)


def test_output_of_python_and_of_children_goes_to_the_file(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "worker_0.log"
    code = (
        f"import os, sys; from parallax_runner.launch.logs import {redirect_output.__name__} as r; r({str(log)!r}); "
        "print('out', flush=True); os.system('echo child'); print('err', file=sys.stderr)"
    )
    for _ in range(2):
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        assert (said.stdout, said.stderr) == (b"", b"")
    assert log.read_text() == "out\nchild\nerr\n" * 2


@pytest.mark.parametrize("kind", ["link", "fifo"])
@pytest.mark.parametrize("redirected", [False, True])
def test_a_link_in_the_place_of_a_log_is_refused_before_anything_is_written(
    kind: str, redirected: bool, tmp_path: Path
) -> None:
    victim, run_dir = tmp_path / "victim", tmp_path / "run"
    victim.write_text("as it was\n")
    folder = tmp_path / "elsewhere" if redirected else run_dir / "logs"
    folder.mkdir(parents=True)
    if kind == "link":
        (folder / "worker_0.log").symlink_to(victim)
    else:
        os.mkfifo(folder / "worker_0.log")
    with pytest.raises(ConfigError, match=r"logs/worker_0.log: it is .*: remove it"):
        redirect_logs(run_dir, str(folder) if redirected else None)
    assert victim.read_text() == "as it was\n"


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_no_process_writes_its_log_through_a_link(kind: str, tmp_path: Path) -> None:
    victim, log = tmp_path / "victim", tmp_path / "worker_0.log"
    victim.write_text("as it was\n")
    if kind == "link":
        log.symlink_to(victim)
    else:
        os.mkfifo(log)
    for anew in (False, True):
        with pytest.raises(LaunchError, match=r"worker_0.log: cannot be written: it is .*: remove it"):
            spawn(Command(["echo", "a key"], {}), log, anew=anew)
    with pytest.raises(OSError, match="remove it"):
        LogFile(log)
    with pytest.raises(OSError, match="remove it"):
        redirect_output(log)
    assert victim.read_text() == "as it was\n"
    assert last_lines(log) == (("as it was",) if kind == "link" else ())
