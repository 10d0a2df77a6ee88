"""The fork server: what it starts is what the interpreter would have started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import forked

TELL = """
import json, os, random, sys
print(json.dumps({
    "argv": sys.argv, "cwd": os.getcwd(), "own": os.environ["OWN"], "name": __name__, "path": sys.path[:2],
    "input": sys.stdin.read(), "drawn": random.random(), "tensorflow": "tensorflow" in sys.modules, "pid": os.getpid(),
}), flush=True)
"""
WAIT = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tell.py").write_text(TELL)
    (tmp_path / "wait.py").write_text(WAIT)
    (tmp_path / "end.py").write_text("import sys\nprint('told', file=sys.stderr)\nsys.exit(7)\n")
    return tmp_path


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(forked.STUB), *arguments],
        cwd=cwd,
        env={**os.environ, **forked.environment(), "OWN": "x\u00e9", "PYTHONPATH": str(cwd / "more")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_arguments_variables_folder_and_streams(folder: Path) -> None:
    found = []
    for arguments in (("tell.py", "a", "b c"), ("-m", "tell", "a", "b c")):
        with start(*arguments, cwd=folder) as process:
            stdout, _ = process.communicate("said")
        assert process.returncode == 0
        told = json.loads(stdout)
        assert told["argv"][1:] == ["a", "b c"]
        assert (told["cwd"], told["own"], told["name"], told["input"]) == (str(folder), "x\u00e9", "__main__", "said")
        assert told["path"] == [str(folder), str(folder / "more")]
        assert told["tensorflow"]
        found.append(told)
    assert found[0]["drawn"] != found[1]["drawn"]
    assert found[0]["pid"] != found[1]["pid"]


def test_an_exit_status(folder: Path) -> None:
    with start("end.py", cwd=folder) as process:
        _, stderr = process.communicate()
    assert (process.returncode, stderr) == (7, "told\n")


def test_a_signal_is_passed_on_and_its_end_comes_back(folder: Path) -> None:
    with start("wait.py", cwd=folder) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(20) == -signal.SIGTERM


def test_who_is_killed_takes_its_program_along(folder: Path) -> None:
    with start("wait.py", cwd=folder) as process:
        assert process.stdout is not None
        program = psutil.Process(int(process.stdout.readline()))
        process.kill()
        program.wait(20)


def test_what_does_without_tensorflow_gets_the_interpreter(folder: Path) -> None:
    with start("-c", "import sys; print(sys.executable, 'tensorflow' in sys.modules)", cwd=folder) as process:
        stdout, _ = process.communicate()
    assert stdout == f"{sys.executable} False\n"
