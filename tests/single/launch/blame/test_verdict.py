"""The failure of an attempt, from its members and their logs."""

from pathlib import Path

import pytest

from parallax_runner.launch.blame.first_death import Member
from parallax_runner.launch.blame.verdict import Logs, find_failure
from parallax_runner.launch.launchers.local import Local
from parallax_runner.launch.logs import log_path

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
