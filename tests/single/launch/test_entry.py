"""How a child ends whose work raises what is no error: the driver is told, and the status is not 0."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parallax_runner.errors import ErrorParts, Setting
from parallax_runner.launch.control import wire
from parallax_runner.launch.control.server import ControlServer

DATA_PATH = {"key": "data.path", "value": "x", "item": None, "where": None}
LIMIT = "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))"
CODE = """
import os, signal, sys, time
from pathlib import Path
from parallax_runner.errors import DataError, Setting
from parallax_runner.launch.child import run_child

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it from their start

def work(run_dir, index, client):
    {deed}

run_child("worker", 0, Path(sys.argv[1]), work)
"""


@pytest.mark.parametrize(
    ("deed", "told", "parts", "recurs"),
    [
        ("sys.exit(0)", "the user's code: it ends the process at <string>:10: SystemExit: 0", None, False),
        ("sys.exit('no')", "the user's code: it ends the process at <string>:10: SystemExit: no", None, False),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", "interrupted by SIGINT", None, False),
        ("raise ValueError('x')", "ValueError: x", None, False),
        (
            f"import resource; {LIMIT}; raise OSError('File too large')",
            "OSError: File too large; size of a file: at most 1048576 KiB (ulimit -f); raise this limit",
            None,
            True,
        ),
        (
            "raise DataError('wrong').about(Setting('data.path', 'x'))",
            "data.path=x: wrong",
            ErrorParts("wrong", (Setting("data.path", "x"),)).as_json() | {"settings": [DATA_PATH]},
            True,
        ),
    ],
)
def test_who_leaves_before_the_work_is_done_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: str, told: str, parts: dict[str, object] | None, recurs: bool
) -> None:
    control = ControlServer(workers=1, servers=0, host="127.0.0.1")
    monkeypatch.setenv(wire.CONTROL_ADDRESS, control.address)
    monkeypatch.setenv(wire.CONTROL_SECRET, control.secret)
    child = subprocess.Popen([sys.executable, "-c", CODE.format(deed=deed), str(tmp_path)])
    try:
        while (message := control.next_message(20.0)) is not None and message.kind != wire.FAIL:
            assert message.kind != wire.CLOSED
        assert message is not None
        fields = message.fields
        assert (fields["error"], fields["parts"], fields["recurs"]) == (told, parts, recurs)
        assert child.wait(20.0) == 1
    finally:
        child.kill()
        control.close()
