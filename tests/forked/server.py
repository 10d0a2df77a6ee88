"""The fork server: `python -m tests.forked.server ADDRESS`. Imports what programs need, and becomes each of them."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from parallax_runner.launch import bind_address
from parallax_runner.process.tensorflow_import import import_tensorflow
from tests.mutation.forks import record_anew

STUB = str(Path(__file__).with_name("python"))


def serve(address: str) -> dict[str, Any]:
    """Waits for requests; returns in a process of its own for each, with the request."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen(64)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, streams = _receive(connection)
    child = os.fork()
    if child:
        _watch(connection, child)
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    return request


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    text = b""
    while len(text) < int.from_bytes(head, "big"):
        text += connection.recv(65536)
    return json.loads(text), streams


def _watch(connection: socket.socket, child: int) -> NoReturn:
    """Passes signals on to the child, and its status back; kills it when whom it stands for is gone."""
    ended = os.pidfd_open(child)
    while True:
        ready, _, _ = select.select([connection, ended], [], [])
        if ended in ready:
            break
        told = connection.recv(1)
        os.kill(child, told[0] if told else signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):  # it was killed, and nobody asks
        connection.sendall(status.to_bytes(2, "big", signed=True))
    os._exit(0)


def become(request: dict[str, Any]) -> None:
    """Runs the program of a request, as the interpreter would with its arguments."""
    os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    if "COVERAGE_PROCESS_START" in os.environ:
        record_anew()
    os.chdir(request["folder"])
    tempfile.tempdir = None  # this environment may set another TMPDIR
    random.seed()
    begin.note()  # as in a new process, whose generators are recorded after the imports
    sys.executable = STUB
    if bind_address.TOWARDS in os.environ:  # the library has read its variable when the server started
        bind_address.bind_towards(os.environ[bind_address.TOWARDS])
    named, *arguments = request["arguments"]
    found = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    is_module = named == "-m"
    first = request["folder"] if is_module else str(Path(named).parent.resolve())
    sys.path[:] = [first, *found, *PATH]
    if is_module:
        name, *arguments = arguments
        sys.argv = [name, *arguments]
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [named, *arguments]
        runpy.run_path(named, run_name="__main__")


if __name__ == "__main__":
    # What an interpreter finds by itself: without this folder, and without PYTHONPATH.
    PATH = [entry for entry in sys.path[1:] if entry not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    import_tensorflow()
    import keras  # noqa: F401
    import mlflow.pyfunc
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
    import numpy as np

    import parallax_runner.driver.check
    import parallax_runner.driver.pipeline
    import parallax_runner.sweep.job
    import parallax_runner.worker.rank  # noqa: F401
    from parallax_runner.graph.generators import begin

    assert len(os.listdir("/proc/self/task")) <= 2, "a thread beside jemalloc's own would be lost in a fork"
    # No fork collects these objects, nor frees them at its end, which would take it a second.
    gc.collect()
    gc.freeze()
    request = serve(sys.argv[1])
    np.random.seed()
    become(request)
