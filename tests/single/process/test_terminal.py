"""A process whose stdout and stderr fail: each way of failing is a real one, at a real descriptor."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

BUFFERED = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
UNBUFFERED = BUFFERED | {"PYTHONUNBUFFERED": "1"}

# Prints more than a buffer holds, in each way in which the driver and its libraries print.
PRINTS = """
import logging, os, sys
from rich.console import Console
from parallax_runner.process.terminal import keep_going, log_losses

names = [(stream.name, stream.mode) for stream in (sys.stdout, sys.stderr) if stream]
keep_going()
assert names in ([], [(stream.name, stream.mode) for stream in (sys.stdout, sys.stderr)])
handler = logging.StreamHandler(sys.stdout)
print("before there is a log", file=sys.stderr)
log = logging.getLogger("parallax_runner")
log.addHandler(logging.FileHandler(sys.argv[1]))
log_losses()
sys.stdin and sys.stdin.readline()  # meanwhile the other side closes its end
for number in range(2000):
    print(f"line {number} on stdout")
    print(f"line {number} on stderr", file=sys.stderr)
    sys.stdout.buffer.write(b"bytes\\n")
Console(stderr=True).print("[red]red")
handler.emit(logging.makeLogRecord({"msg": "by a handler"}))
sys.stdout.flush()
sys.__stderr__.write("by the name that stays")
print("left in the buffer", end="")
log.warning("came to the end, next descriptor %d", os.open(os.devnull, os.O_RDONLY))
sys.exit(3)
"""


def command(log: Path) -> list[str]:
    return [sys.executable, "-c", PRINTS, str(log)]


def expect_end(exit_status: int | None, log: Path, reason: str | None) -> None:
    """Its own exit status, and one line in the log for each stream that was lost."""
    assert exit_status == 3
    *lines, last = log.read_text().splitlines()
    assert int(last.removeprefix("came to the end, next descriptor ")) > 2
    lost = f"cannot be written: {reason}; its output is lost, but the run continues"
    assert sorted(lines) == ([f"{name} {lost}" for name in ("stderr", "stdout")] if reason else [])


@pytest.mark.parametrize("environ", [BUFFERED, UNBUFFERED], ids=["buffered", "unbuffered"])
def test_a_reader_that_goes_away(environ: dict[str, str], tmp_path: Path) -> None:
    reads, writes = os.pipe()
    process = subprocess.Popen(
        command(tmp_path / "log"), stdin=subprocess.PIPE, stdout=writes, stderr=writes, env=environ
    )
    os.close(writes)
    assert os.read(reads, 6) == b"before"
    os.close(reads)
    process.communicate(b"\n", timeout=60)
    expect_end(process.returncode, tmp_path / "log", "[Errno 32] Broken pipe")


def test_a_terminal_that_is_closed(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command(tmp_path / "log"), stdin=subprocess.PIPE, stdout=theirs, stderr=theirs)
    os.close(theirs)
    assert b"before there is a log" in os.read(ours, 100)
    os.close(ours)
    process.communicate(b"\n", timeout=60)
    expect_end(process.returncode, tmp_path / "log", "[Errno 5] Input/output error")


@pytest.mark.parametrize(
    ("redirection", "reason"),
    [
        (">/dev/full 2>&1", "[Errno 28] No space left on device"),
        (">&- 2>&- <&-", "[Errno 9] Bad file descriptor"),
        (">/dev/null 2>&1", None),
    ],
)
def test_what_a_shell_redirects(redirection: str, reason: str | None, tmp_path: Path) -> None:
    shell = ["bash", "-c", f'exec "$@" {redirection}', "bash", *command(tmp_path / "log")]
    process = subprocess.run(shell, stdin=subprocess.DEVNULL, timeout=60, check=False)
    expect_end(process.returncode, tmp_path / "log", reason)


def test_all_that_can_be_written_is(tmp_path: Path) -> None:
    with open(tmp_path / "out", "w") as out:
        process = subprocess.run(
            command(tmp_path / "log"), stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False
        )
    expect_end(process.returncode, tmp_path / "log", None)
    written = (tmp_path / "out").read_text()
    assert all(f"line {number} on {name}\n" in written for number in range(2000) for name in ("stdout", "stderr"))
    assert all(text in written for text in ("bytes", "red", "by a handler", "by the name that stays"))
    assert written.endswith("left in the buffer")


@pytest.mark.parametrize("environ", [BUFFERED, UNBUFFERED], ids=["buffered", "unbuffered"])
def test_a_pipe_that_does_not_block(environ: dict[str, str], tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    process = subprocess.Popen(
        command(tmp_path / "log"),
        stdin=subprocess.DEVNULL,
        stdout=writes,
        stderr=subprocess.DEVNULL,
        env=environ,
    )
    os.close(writes)
    with open(reads, encoding="utf-8") as pipe:
        written = pipe.read()
    assert process.wait(60) == 3
    assert "".join(f"line {number} on stdout\n" for number in range(2000)) in written.replace("bytes\n", "")


def test_streams_of_others_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    from parallax_runner.process.terminal import keep_going

    before = (sys.stdout, sys.stderr)
    keep_going()
    assert (sys.stdout, sys.stderr) == before
    print("captured")
    assert capsys.readouterr().out == "captured\n"
