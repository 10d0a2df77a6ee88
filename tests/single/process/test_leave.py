"""What still runs of the user's code when a process leaves from within it."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import atexit, multiprocessing, sys, tempfile, threading
from pathlib import Path
from parallax_runner.process.leave import leave

threading.Thread(target=threading.Event().wait).start()  # ends with the `finally` block that does not run
child = multiprocessing.get_context("fork").Process(target=threading.Event().wait)
child.start()
folder = tempfile.TemporaryDirectory(dir=sys.argv[1])
atexit.register(print, "handler runs")
try:
    with folder:
        print("leaves")
        leave(3)
except BaseException as error:
    print("caught", error)
finally:
    print("finally")
print("goes on")
"""


def test_no_line_after_the_call_runs_but_exit_handlers_do(tmp_path: object) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (3, "leaves\nhandler runs\n", "")


HANDLER_FAILS = """
import atexit, sys
from parallax_runner.process.leave import leave
atexit.register(sys.exit, "no")
leave(0)
"""


def test_handlers_that_fail_do_not_keep_the_process() -> None:
    assert subprocess.run([sys.executable, "-c", HANDLER_FAILS], capture_output=True, timeout=60).returncode == 0
