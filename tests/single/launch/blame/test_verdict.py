"""The failure of an attempt, from its members and their logs."""

from pathlib import Path
from typing import Any

import pytest

from parallax_runner.errors import ErrorParts, Setting
from parallax_runner.launch.blame.first_death import Member
from parallax_runner.launch.blame.verdict import Logs, find_failure
from parallax_runner.launch.control import wire
from parallax_runner.launch.control.wire import Message
from parallax_runner.launch.launchers.local import Local
from parallax_runner.launch.logs import log_path
from parallax_runner.launch.member_reports import note_failure

DAEMON = "ORTE has lost communication with a remote daemon."
RUN = Member("run", 0)


def member(role: str, index: int = 0, **fields: object) -> Member:
    return Member(role, index, **{"said_hello": True, "lost_secs": 10.0} | fields)


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    found = Logs(tmp_path)
    for role, index, text in [("mpirun", 0, DAEMON), ("worker", 0, "worker 0 ends")]:
        path = log_path(tmp_path, role, index)
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n")
    return found


def test_mpiruns_own_failure_explains_workers_that_ended_silently(logs: Logs) -> None:
    """The workers are lost first, because mpirun kills them before it ends."""
    mpirun = member("mpirun", lost_secs=10.2, exit_status=213)
    found = find_failure([member("worker"), member("worker", 1)], [], mpirun, RUN, logs, Local())
    assert (str(found), found.last_lines) == ("mpirun: exit status 213", (DAEMON,))


LOST_PEER = """[1,0]<stderr>: An MPI communication peer process has unexpectedly disconnected.  This
[1,0]<stderr>: usually indicates a failure in the peer process (e.g., a crash or
[1,0]<stderr>:   Local host: h1
[1,0]<stderr>:   Peer host:  h2
[1,0]<stderr>: [h1:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
prterun has exited due to process rank 0 with PID 12797 on node h1 calling
"abort". This may have caused other processes in the application to be
"""


def test_a_peer_that_is_gone_is_blamed_before_the_mpirun_that_others_ended(tmp_path: Path) -> None:
    """A worker on another host was killed, and the abort of a worker that noticed reached mpirun first."""
    logs = Logs(tmp_path)
    (tmp_path / "logs").mkdir()
    log_path(tmp_path, "mpirun", 0).write_text(LOST_PEER)
    workers = [member("worker", 0, host="h1"), member("worker", 1, host="h2", lost_secs=10.1)]
    mpirun = member("mpirun", lost_secs=10.2, exit_status=14)
    found = find_failure(workers, [], mpirun, RUN, logs, Local())
    assert str(found) == "worker 1 on h2: its process was killed, or the connection to its machine is lost"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"error": "ValueError: x"}, "worker 0: ValueError: x"),
        ({"exit_status": 3}, "worker 0: exit status 3"),
        ({"verdict": "frozen"}, "worker 0: frozen"),
    ],
)
def test_a_worker_whose_end_is_explained_is_blamed_before_mpirun(
    fields: dict[str, object], reason: str, logs: Logs
) -> None:
    mpirun = member("mpirun", lost_secs=10.2, exit_status=1)
    found = find_failure([member("worker", **fields)], [], mpirun, RUN, logs, Local())
    assert (str(found), found.last_lines) == (reason, ("worker 0 ends",))


def test_a_silent_worker_is_blamed_if_mpirun_did_not_fail(logs: Logs) -> None:
    mpirun = member("mpirun", lost_secs=10.2, exit_status=0)
    assert str(find_failure([member("worker")], [], mpirun, RUN, logs, Local())) == "worker 0: died without a message"


def test_a_failed_start_of_mpi_names_the_setting_behind_it(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_MCA_pml", "ucx")
    mpirun = member("mpirun", lost_secs=10.2, exit_status=213)
    silent = [member("worker", said_hello=False)]
    assert "OMPI_MCA_pml=ucx" in str(find_failure(silent, [], mpirun, RUN, logs, Local()))
    ended = [member("worker", exit_status=14)]
    assert str(find_failure(ended, [], mpirun, RUN, logs, Local())) == "worker 0: exit status 14"
    with open(log_path(logs._run_dir, "worker", 0), "a") as log:
        log.write("*** An error occurred in MPI_Init_thread\n")
    assert "OMPI_MCA_pml=ucx" in str(find_failure(ended, [], mpirun, RUN, logs, Local()))


@pytest.mark.parametrize(
    ("line", "exit_status", "named"),
    [
        (
            "Thread tf_Compute creation via pthread_create() failed.",
            -6,
            "; processes and threads of this user: at most 1048576",
        ),
        (
            "terminate called after throwing an instance of 'std::bad_alloc'",
            -6,
            "; address space of a process: at most 1024 KiB",
        ),
        ("nothing known", -6, "; a possible cause is a limit: address space of a process: at most"),
        ("nothing known", -9, ""),
    ],
)
def test_a_limit_that_ended_a_worker_is_named(
    line: str, exit_status: int, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda number: (1 << 20, 1 << 20))
    monkeypatch.setattr("parallax_runner.process.limits._tasks_of_user", lambda: 1)
    logs = Logs(tmp_path)
    path = log_path(tmp_path, "worker", 0)
    path.parent.mkdir()
    path.write_text(f"{line}\n" + 30 * "a line of the stack\n")
    worker = member("worker", exit_status=exit_status)
    reason = find_failure([worker], [], None, RUN, logs, Local()).reason
    assert named in reason if named else reason.endswith(")")


PARTS = ErrorParts("expected 1 or more", (Setting("data.items", "0"),))


@pytest.mark.parametrize(
    ("sent", "parts"), [(PARTS.as_json(), PARTS), (None, None), ({"reason": "x"}, None), ({"settings": [3]}, None)]
)
def test_the_parts_of_a_worker_s_error_arrive(
    logs: Logs, sent: dict[str, Any] | None, parts: ErrorParts | None
) -> None:
    """What are no parts is left out, and the text stays."""
    worker = member("worker")
    fields = {"error": str(PARTS), "traceback": "", "parts": sent, "recurs": True, "exit_status": None}
    note_failure(worker, Message("worker", 0, "", wire.FAIL, fields, 10.0))
    found = find_failure([worker], [], None, RUN, logs, Local())
    assert (found.parts, str(found)) == (parts, "worker 0: data.items=0: expected 1 or more")
