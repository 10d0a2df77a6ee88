"""Children of a launch that are tiny and import no TensorFlow, and the driver that starts them."""

import contextlib
import os
import pickle
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from parallax_runner.launch.job import Job, LaunchSpec, thread_environment
from parallax_runner.launch.launchers.direct import Direct
from parallax_runner.launch.launchers.local import Local
from parallax_runner.launch.processes import Message, RunResult, run

ROOT = Path(__file__).parents[2]
TOKEN_NAME = "PARALLAX_TEST_TOKEN"

# Each behaviour defines the actions of one child between hello and done.
CHILD = """
import ctypes, os, signal, sys, time, traceback
from pathlib import Path
from parallax_runner.launch.control.activity import Activity, Kind
from parallax_runner.launch.control.client import ControlClient, rank_from_environ
from parallax_runner.launch.logs import log_path, redirect_output

def wait_for_ever():
    time.sleep(600)

def wait_for(name):
    while not Path(sys.argv[1], name).exists():
        time.sleep(0.05)

def behave(behaviour, client, role, index):
    if behaviour == "raise":
        time.sleep(0.3)
        Path(sys.argv[1], "dies").touch()
        raise ValueError(f"bad batch on {role} {index}")
    if behaviour in ("kill", "kill_late"):
        time.sleep(0.3 if behaviour == "kill" else 5)
        print("about to die", flush=True)
        Path(sys.argv[1], "dies").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour in ("exit3", "exit0"):
        time.sleep(0.3)
        os._exit(int(behaviour[-1]))
    if behaviour == "follow":
        # When a peer is gone, exchanges and grpc raise their own error a little later.
        wait_for("dies")
        time.sleep(2)
        raise RuntimeError("peer is gone")
    if behaviour == "hang":
        time.sleep(600)
    if behaviour == "freeze":
        client.doing, client.step = Activity(Kind.STEP, 8), 7
        time.sleep(0.3)
        print("about to freeze", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    if behaviour == "work":
        client.doing, client.step = Activity(Kind.STEP, 8), 7
        time.sleep(600)
    if behaviour == "mpi":
        from mpi4py import MPI
        MPI.COMM_WORLD.barrier()
        folder = os.environ["OMPI_MCA_btl_sm_backing_directory"]
        print("segments", folder, *os.listdir(folder), flush=True)
        client.report("progress", step=1)
        time.sleep(600)
    if behaviour in ("step", "keep_lock"):
        client.doing, client.step = Activity(Kind.STEP, 8), 7
        time.sleep(5)
        wait_for_ever() if behaviour == "step" else ctypes.PyDLL(None).sleep(600)
    if behaviour == "hang_deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600")
        Path(sys.argv[1], f"deaf_{index}").touch()
        time.sleep(600)
    if behaviour in ("until_stop", "until_told"):
        client.doing = Activity(Kind.STEP, 8)
        while not client.stop_requested.wait(0.05):
            client.report("progress", step=1)
        wait_for("end") if behaviour == "until_told" else time.sleep(0.3)
    if behaviour == "report_many":
        for step in range(80):
            client.report("progress", step=step)
    if behaviour == "port_once" and not Path(sys.argv[1], "tried").exists():
        Path(sys.argv[1], "tried").touch()
        client.port_taken("127.0.0.1:1")
        sys.exit(1)
    if behaviour == "port_always":
        client.port_taken("127.0.0.1:1")
        sys.exit(1)
    if behaviour == "serve":
        client.wait_for_stop()
    if behaviour == "serve_deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)

def main(role, index, behaviours):
    behaviour = behaviours[min(index, len(behaviours) - 1)]
    if behaviour == "mute_exit":
        sys.exit("no module named nonsense")
    if behaviour == "mute_hang":
        time.sleep(600)
    redirect_output(log_path(sys.argv[1], role, index))
    client = ControlClient.connect(role=role, index=index)
    print("hello from", role, index, flush=True)
    try:
        cluster = client.exchange_address(f"127.0.0.1:{1000 + index}") if behaviour != "lonely" else {}
        behave(behaviour, client, role, index)
    except Exception as error:
        client.fail(f"{type(error).__name__}: {error}", traceback.format_exc())
        sys.exit(1)
    client.done(cluster=cluster, stopped=client.stop_requested.is_set())

if os.path.basename(__file__) == "dummy_worker.py":
    main("worker", rank_from_environ(), os.environ["WORKER_BEHAVIOURS"].split(","))
else:
    main("server", int(sys.argv[2]), os.environ["SERVER_BEHAVIOURS"].split(","))
"""

DRIVER = """
import pickle, sys
from parallax_runner.launch import own_folder, processes
{setup}
spec = pickle.load(open(sys.argv[1], "rb"))
result = processes.run(spec, on_message=lambda message: print(message.kind, message.role, message.index, flush=True))
print("status", result.status, flush=True)
sys.exit(result.exit_status)
"""


class Dummies:
    """Dummy processes: makes their LaunchSpec and finds the processes that remain."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.token = uuid.uuid4().hex
        for name in ("dummy_worker.py", "dummy_server.py"):
            (run_dir / name).write_text(CHILD)

    def spec(self, workers: str, servers: str = "", *, direct: bool = False, **times: float) -> LaunchSpec:
        """Returns a spec with one behaviour per child, separated by commas."""
        ranks, shards = workers.split(","), [one for one in servers.split(",") if one]
        extra = {
            TOKEN_NAME: self.token,
            "PYTHONPATH": os.pathsep.join([str(self.run_dir), str(ROOT)]),
            "WORKER_BEHAVIOURS": workers,
            "SERVER_BEHAVIOURS": servers,
        }
        job = Job(
            run_dir=self.run_dir,
            workers=len(ranks),
            servers=len(shards),
            env=thread_environment(1) | extra,
            worker_module="dummy_worker",
            server_module="dummy_server",
        )
        return LaunchSpec(job, Direct() if direct else Local(), **times)

    def run(
        self,
        *args,
        on_message: Callable[[Message], None] = lambda message: None,
        on_tick: Callable[[], None] | None = None,
        on_stall: Callable[[str], None] | None = None,
        **kwargs,
    ) -> RunResult:
        """Runs, prints the duration, and asserts that no process is left."""
        start = time.monotonic()
        result = run(self.spec(*args, **kwargs), on_message=on_message, on_tick=on_tick, on_stall=on_stall)
        print(f"{args}: {result.status} {result.failure} in {time.monotonic() - start:.2f} s")
        assert self.left() == []
        return result

    def left(self) -> list[str]:
        """Returns command lines of living processes that belong to this job."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                    argv = process.cmdline()
                    if process.environ().get(TOKEN_NAME) == self.token or str(self.run_dir) in " ".join(argv):
                        found.append(" ".join(argv))
        return found

    def wait_until_none_left(self, timeout_secs: float) -> float:
        """Waits until the last process is gone; returns the seconds that this took."""
        start = time.monotonic()
        while self.left():
            assert time.monotonic() < start + timeout_secs, self.left()
            time.sleep(0.05)
        return time.monotonic() - start


@contextlib.contextmanager
def driver(job: Dummies, spec: LaunchSpec, setup: str = "") -> Iterator[subprocess.Popen]:
    """A driver in a separate process, which can be signalled and killed; it executes the line `setup` first."""
    (job.run_dir / "spec.pickle").write_bytes(pickle.dumps(spec))
    (job.run_dir / "driver.py").write_text(DRIVER.format(setup=setup))
    process = subprocess.Popen(
        [sys.executable, str(job.run_dir / "driver.py"), str(job.run_dir / "spec.pickle")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_line(process: subprocess.Popen, text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"the driver never said {text!r}")


def wait_for_file(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.05)
