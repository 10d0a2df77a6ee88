"""Whether workers can run the user's script again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from parallax_runner.process.script_file import script_file, script_module, why_not_again


def show():
    print(script_file() and script_file().name, script_module(), why_not_again(), sep="|", flush=True)


def test_show():
    show()


if __name__ == "__main__":
    import multiprocessing, threading

    show()
    for make in (multiprocessing.get_context("spawn").Process, multiprocessing.get_context("fork").Process):
        child = make(target=show, name="child")
        child.start()
        child.join()
    thread = threading.Thread(target=show, name="mine")
    thread.start()
    thread.join()
"""
NO_FILE = "this is a notebook, an interactive session or a program without a file"


def shown(*arguments: str, cwd: Path, text: str | None = None) -> list[str]:
    path = str(Path(__file__).parents[3])
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={"PYTHONPATH": path, "PATH": ""},
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in ended.stdout.splitlines() if "|" in line]


def test_a_script_its_children_and_its_threads(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    for arguments, module in ((["train.py"], "None"), (["-m", "train"], "train")):
        whole, spawned, forked, thread = shown(*arguments, cwd=tmp_path)
        assert whole == f"train.py|{module}|None"
        assert spawned.endswith("|this is the child process 'child'") and forked.endswith("'child'")
        assert thread == f"train.py|{module}|this is the thread 'mine'"


def test_programs_without_a_file(tmp_path: Path) -> None:
    text = PROGRAM.partition("if __name__")[0] + "show()\n"
    assert shown("-", cwd=tmp_path, text=text) == [f"None|None|{NO_FILE}"]
    assert shown("-c", text, cwd=tmp_path) == [f"None|None|{NO_FILE}"]


def test_programs_that_call_the_users_code(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(PROGRAM)
    assert shown("-m", "pytest", "-qs", "-p", "no:cacheprovider", cwd=tmp_path) == [
        "__main__.py|pytest|pytest calls this code"
    ]
