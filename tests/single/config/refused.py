"""What a wrong command line is answered with: one message, exit status 2."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.single.config.in_process import answer


def run(*arguments: str, cwd: Path, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, "-m", "parallax_runner", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)


def refused(result: subprocess.CompletedProcess[str]) -> str:
    """The one message of a refused command line."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("parallax_runner: "), result.stderr
    assert "use +" not in lines[0]
    return lines[0].removeprefix("parallax_runner: ")


def wrong_line(
    case: Sequence[str], cwd: Path, *, respond: Callable[..., subprocess.CompletedProcess[str]] = answer
) -> None:
    """Checks the message for a command line. `case` is the line and the parts of the message. `answer` shows in this
    process what the command would answer, and `run` runs it as a user does."""
    (cwd / "empty").mkdir()
    line, *fragments = case
    assert fragments
    arguments = [line] if "{" in line and "${" not in line else line.split(" ")
    message = refused(respond(*arguments, cwd=cwd))
    for fragment in fragments:
        assert fragment in message
    assert sorted(path.name for path in cwd.iterdir()) == ["empty"], "nothing has started"
