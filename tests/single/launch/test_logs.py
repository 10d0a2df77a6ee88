import subprocess
import sys
from pathlib import Path

from parallax_runner.launch.logs import TAIL_BYTES, last_lines, log_path, redirect_output


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
