"""Real mpirun, real processes, real deaths; the children are tiny and import no TensorFlow."""

import contextlib
import dataclasses
import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from parallax_runner.launch import attempt, own_folder
from parallax_runner.launch.control.activity import Activity, Kind
from parallax_runner.launch.launchers.local import Local
from parallax_runner.launch.mpirun.folders import TEMPORARY
from parallax_runner.launch.processes import Message, run
from parallax_runner.launch.watch import stall
from tests.integration.dummies import TOKEN_NAME, Dummies, driver, wait_for_file, wait_for_line


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Dummies]:
    one = Dummies(tmp_path)
    yield one
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(TOKEN_NAME) == one.token:
                process.kill()


def test_everybody_finishes_and_knows_everybody(job: Dummies) -> None:
    kinds: list[str] = []
    result = job.run("quick,quick", "serve,serve", on_message=lambda message: kinds.append(message.kind))
    assert (result.status, result.exit_status, result.failure) == ("finished", 0, None)
    assert set(result.done) == {("worker", 0), ("worker", 1), ("server", 0), ("server", 1)}
    addresses = ["127.0.0.1:1000", "127.0.0.1:1001"]
    assert all(fields["cluster"] == {"worker": addresses, "server": addresses} for fields in result.done.values())
    assert kinds.count("hello") == kinds.count("done") == 4
    assert "hello from worker 1" in (job.run_dir / "logs" / "worker_1.log").read_text()
    assert "hello from server 0" in (job.run_dir / "logs" / "server_0.log").read_text()


@pytest.mark.parametrize("direct", [True, False])
def test_a_driver_that_is_behind_its_workers_reads_their_last_words(job: Dummies, direct: bool) -> None:
    """The workers have ended long before the driver, whose tracker is slow, reads that they are done."""
    result = job.run("report_many", direct=direct, on_message=lambda message: time.sleep(0.1))
    assert (result.status, result.failure) == ("finished", None)


def test_one_worker_without_mpirun(job: Dummies) -> None:
    ticks: list[int] = []
    result = job.run("quick", direct=True, on_tick=lambda: ticks.append(1))
    assert ticks
    assert (result.status, result.done[("worker", 0)]["cluster"]["worker"]) == ("finished", ["127.0.0.1:1000"])


def test_a_worker_that_raises_is_blamed_with_its_traceback(job: Dummies) -> None:
    result = job.run("follow,raise", "serve")
    assert (result.status, result.exit_status) == ("failed", 1)
    failure = result.failure
    assert (failure.role, failure.index, failure.reason) == ("worker", 1, "ValueError: bad batch on worker 1")
    assert failure.last_lines[-1] == "ValueError: bad batch on worker 1"


def test_a_killed_worker_is_blamed_and_not_those_that_follow(job: Dummies) -> None:
    result = job.run("follow,kill", "serve")
    failure = result.failure
    assert (failure.role, failure.index, failure.reason) == ("worker", 1, "killed by signal 9 (SIGKILL)")
    assert failure.last_lines == ("hello from worker 1", "about to die")


def test_a_killed_server_is_blamed_while_workers_hang(job: Dummies) -> None:
    result = job.run("hang,follow", "serve,kill")
    failure = result.failure
    assert (failure.role, failure.index, failure.reason) == ("server", 1, "killed by signal 9 (SIGKILL)")
    assert failure.last_lines == ("hello from server 1", "about to die")


@pytest.mark.parametrize("frozen", [("worker", 1), ("worker", 0), ("server", 0)])
def test_a_frozen_process_counts_as_dead(job: Dummies, frozen: tuple[str, int]) -> None:
    workers = ["freeze" if frozen == ("worker", index) else "work" for index in range(3)]
    start = time.monotonic()
    result = job.run(",".join(workers), "freeze" if frozen[0] == "server" else "serve", hang_timeout_secs=8.0)
    failure = result.failure
    assert (result.status, result.exit_status) == ("failed", 1)
    assert (failure.role, failure.index) == frozen
    assert re.fullmatch(
        r"frozen: no sign of life for [678] s \(train.hang_timeout_secs=8\); the process is stopped \(SIGSTOP\)",
        failure.reason,
    )
    assert failure.last_lines[-1] == "about to freeze"
    others = {(one.role, one.index): one for one in failure.others}
    assert set(others) == {("worker", 0), ("worker", 1), ("worker", 2), ("server", 0)} - {frozen}
    for (role, _), one in others.items():
        if role == "worker":
            assert (one.doing, one.step) == (Activity(Kind.STEP, 8), 7)
            assert one.doing_secs is not None
            assert one.doing_secs > 1
    assert failure.step == 7
    print(f"{frozen}: all gone {time.monotonic() - start:.1f} s after the start")


def test_a_step_that_never_ends_is_told_and_ends_the_run_with_the_stacks_of_all_ranks(
    job: Dummies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall, "LEAST_SECS", 8.0)
    monkeypatch.setattr(attempt, "ANSWER_SECS", 3.0)
    told: list[str] = []
    # One rank's interpreter is blocked in C code: none of its Python threads can answer.
    result = job.run("step,keep_lock,step", stall_timeout_secs=14.0, on_stall=told.append)
    standing = "worker 1 is in step 8 and not responding, workers 0, 2 are waiting for it"
    assert any(re.fullmatch(rf"no step for \d+ s; {standing}", line) for line in told), told
    failure = result.failure
    assert (result.status, failure.role, failure.index, failure.step) == ("failed", "worker", 1, 7)
    assert re.match(rf"no step for \d+ s; {standing} \(train.stall_timeout_secs=14\)", failure.reason), failure.reason
    logs = [(job.run_dir / "logs" / f"worker_{rank}.log").read_text() for rank in range(3)]
    assert all(re.search(r'^  File ".*dummy_worker.py", line \d+ in behave$', log, re.M) for log in logs), logs
    assert all("in wait_for_ever" in logs[rank] for rank in (0, 2))


def test_a_driver_that_was_stopped_itself_blames_nobody(job: Dummies) -> None:
    with driver(job, job.spec("until_stop,until_stop", "serve", hang_timeout_secs=6.0)) as process:
        wait_for_line(process, "progress worker 1")
        process.send_signal(signal.SIGSTOP)
        time.sleep(8)
        process.send_signal(signal.SIGCONT)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
        assert "status interrupted" in said
    assert job.left() == []


def test_where_the_others_stood_when_one_was_killed(job: Dummies) -> None:
    # By then the others have reported their activity, which they do every two seconds.
    failure = job.run("kill_late,work,work", "serve", hang_timeout_secs=10.0).failure
    assert (failure.role, failure.index, failure.exit_status) == ("worker", 0, -9)
    assert failure.pid is not None
    others = {(one.role, one.index): one for one in failure.others}
    assert {(others["worker", index].doing, others["worker", index].step) for index in (1, 2)} == {
        (Activity(Kind.STEP, 8), 7)
    }
    # These children run none of the package's code, except for the server, which waits for its end.
    assert str(others["server", 0].where).startswith("threading.wait in launch/control/client.py:")


def test_an_exit_without_a_word_is_told_by_its_status(job: Dummies) -> None:
    result = job.run("hang,exit3")
    assert (result.failure.role, result.failure.index, result.failure.reason) == ("worker", 1, "exit status 3")


def test_an_exit_with_status_0_before_the_work_is_done_is_named(job: Dummies) -> None:
    failure = job.run("hang,exit0", "serve").failure
    told = (failure.role, failure.index, failure.exit_status, failure.reason)
    assert told == ("worker", 1, 0, "ended before its work was done (exit status 0)")


def mpirun_of_this_process() -> psutil.Process | None:
    return next((one for one in psutil.Process().children() if one.name() in ("mpirun", "prterun")), None)


def rank_of(mpirun: psutil.Process) -> psutil.Process | None:
    """Returns a rank, or None. A child that mpirun has just forked is not a rank until it starts its program."""
    for child in mpirun.children():
        with contextlib.suppress(psutil.Error):
            if "OMPI_COMM_WORLD_RANK" in child.environ():
                return child
    return None


@pytest.mark.parametrize("who", ["mpirun", "rank"])
def test_who_is_stopped_before_any_rank_says_hello_is_named(job: Dummies, who: str) -> None:
    stopped: list[psutil.Process] = []

    def stop() -> None:
        mpirun = mpirun_of_this_process()
        if mpirun is None or stopped:
            return
        one = mpirun if who == "mpirun" else rank_of(mpirun)
        if one is not None:
            one.send_signal(signal.SIGSTOP)
            stopped.append(one)

    failure = job.run("mute_hang,mute_hang", on_tick=stop, hang_timeout_secs=4.0, startup_timeout_secs=30.0).failure
    assert failure.role == ("mpirun" if who == "mpirun" else "worker")
    assert failure.pid == stopped[0].pid
    assert re.fullmatch(
        r"frozen: the process is stopped \(SIGSTOP\) for \d s \(train.hang_timeout_secs=4\)", failure.reason
    )


def test_a_killed_mpirun_is_not_blamed_on_a_rank(job: Dummies) -> None:
    def kill_mpirun(message: Message) -> None:
        if message.kind == "progress" and (mpirun := mpirun_of_this_process()) is not None:
            mpirun.kill()

    result = job.run("until_stop,hang", "serve", on_message=kill_mpirun)
    assert (result.failure.role, result.failure.reason) == ("mpirun", "killed by signal 9 (SIGKILL)")


def test_an_mpirun_that_somebody_ends_is_named(job: Dummies) -> None:
    ended: list[psutil.Process] = []

    def end_mpirun(message: Message) -> None:
        if message.kind == "progress" and not ended and (mpirun := mpirun_of_this_process()) is not None:
            mpirun.terminate()
            ended.append(mpirun)

    failure = job.run("until_stop,hang", "serve", on_message=end_mpirun).failure
    told = "exit status 1, without a message: it may have received SIGTERM, SIGINT or SIGHUP"
    assert (failure.role, failure.reason) == ("mpirun", told)


def segments_of(job: Dummies) -> Path:
    """Returns the folder of its ranks' shared memory, of which there was some."""
    found = re.search(r"^segments (\S+) sm_segment\.\S+", (job.run_dir / "logs" / "worker_1.log").read_text(), re.M)
    assert found is not None
    return Path(found[1])


def temporary_folder_of(mpirun: psutil.Process) -> Path:
    """Returns the folder of a living mpirun's temporary files, of which there are some."""
    folder = Path(mpirun.environ()[TEMPORARY])
    assert list(folder.iterdir())
    return folder


def test_a_killed_mpirun_leaves_no_folders(job: Dummies) -> None:
    temporary: list[Path] = []

    def kill_mpirun(message: Message) -> None:
        if (message.kind, message.index) == ("progress", 1) and (mpirun := mpirun_of_this_process()) and not temporary:
            temporary.append(temporary_folder_of(mpirun))
            mpirun.kill()

    assert job.run("mpi,mpi", on_message=kill_mpirun).failure.role == "mpirun"
    assert not segments_of(job).exists()
    assert not temporary[0].exists()


def test_the_next_start_removes_the_folders_of_a_killed_driver(job: Dummies, monkeypatch: pytest.MonkeyPatch) -> None:
    # The folders have their own prefix, so that drivers in other tests do not remove them.
    prefix = f"parallax_runner-{job.token}-"
    monkeypatch.setattr(own_folder, "prefix", lambda: prefix)
    with driver(job, job.spec("mpi,mpi"), f"own_folder.prefix = lambda: {prefix!r}") as process:
        wait_for_line(process, "progress worker 1")
        mpirun = next(one for one in psutil.Process(process.pid).children() if one.name() in ("mpirun", "prterun"))
        temporary = temporary_folder_of(mpirun)
        mpirun.kill()
        process.kill()
        process.wait()
        job.wait_until_none_left(60)
    assert list(segments_of(job).iterdir()) and list(temporary.iterdir())
    assert job.run("quick").status == "finished"
    assert not segments_of(job).exists() and not temporary.exists()


def test_what_a_killed_mpirun_of_the_same_pid_has_left(
    job: Dummies, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path_factory.mktemp("tmp")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    # The kernel chooses mpirun's pid: one of the next.
    newest, pids = int(Path("/proc/loadavg").read_text().split()[-1]), int(Path("/proc/sys/kernel/pid_max").read_text())
    for pid in ((newest + ahead) % pids for ahead in range(3000)):
        left = temporary / f"ompi.{pid}"
        left.mkdir(mode=0o700)
        (left / f"pmix.vm.tool.{pid}").touch()
    monkeypatch.setenv("TMPDIR", str(temporary))
    before = sorted(temporary.iterdir())
    assert job.run("quick,quick").status == "finished"
    assert sorted(temporary.iterdir()) == before


def test_a_killed_worker_without_mpirun(job: Dummies) -> None:
    result = job.run("kill", direct=True)
    assert (result.failure.role, result.failure.reason) == ("worker", "killed by signal 9 (SIGKILL)")


def test_processes_that_ignore_sigterm_and_their_children_are_ended(job: Dummies) -> None:
    start = time.monotonic()
    result = job.run("hang_deaf,hang_deaf", "serve_deaf,kill")
    assert (result.failure.role, result.failure.index) == ("server", 1)
    assert time.monotonic() - start < 200


def test_a_rank_that_ends_before_it_says_hello(job: Dummies) -> None:
    result = job.run("quick,mute_exit", "serve")
    failure = result.failure
    assert (failure.role, failure.index, failure.reason) == ("worker", 1, "exit status 1")
    assert failure.last_lines == ("no module named nonsense",)


def test_a_server_that_ends_before_it_says_hello(job: Dummies) -> None:
    result = job.run("quick", "mute_exit")
    failure = result.failure
    assert (failure.role, failure.index, failure.reason) == ("server", 0, "exit status 1")
    assert failure.last_lines == ("no module named nonsense",)


def test_a_rank_that_never_starts(job: Dummies) -> None:
    result = job.run("quick,mute_hang", startup_timeout_secs=20.0)
    assert (result.failure.index, result.failure.reason) == (1, "did not start within 20 s")


def test_options_that_mpirun_refuses(job: Dummies, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OMPI_MCA_")]:  # a hint would name these settings
        monkeypatch.delenv(name)
    spec = dataclasses.replace(job.spec("quick"), launcher=Local(["--no-such-option"]))
    result = run(spec, on_message=lambda _: None)
    assert (result.failure.role, result.failure.reason) == ("mpirun", "exit status 213")
    assert any("--no-such-option" in line for line in result.failure.last_lines)


def test_a_taken_port_starts_everything_again(job: Dummies) -> None:
    result = job.run("quick,port_once", "serve")
    assert result.status == "finished"


def test_ports_that_are_always_taken_end_the_run(job: Dummies) -> None:
    result = job.run("port_always", direct=True)
    assert result.status == "failed"
    assert "in each of 5 attempts, most recently 127.0.0.1:1" in result.failure.reason


def test_an_exception_of_the_driver_leaves_nobody(job: Dummies) -> None:
    def object_to_progress(message: Message) -> None:
        if message.kind == "progress":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(job.spec("until_stop,hang", "serve"), on_message=object_to_progress)
    assert job.left() == []


@pytest.mark.parametrize(("number", "exit_status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_to_the_driver_lets_workers_end_well(job: Dummies, number: int, exit_status: int) -> None:
    with driver(job, job.spec("until_told,until_told", "serve")) as process:
        wait_for_line(process, "progress worker 1")
        process.send_signal(number)
        told = f"{signal.Signals(number).name}: stopping: waiting for workers 0–1 (step 8); a second signal"
        wait_for_line(process, told)
        (job.run_dir / "end").touch()
        said, _ = process.communicate(timeout=60)
        assert process.returncode == exit_status
        assert "status interrupted" in said
        assert all(f"done {name}" in said for name in ("worker 0", "worker 1", "server 0"))
    assert job.left() == []


def test_a_signal_to_everybody_at_once_is_no_failure(job: Dummies) -> None:
    # On a busy machine, sending the signals takes longer.
    with driver(job, job.spec("hang,hang", "serve"), "processes.SIGNALLED_TOGETHER_SECS = 30.0") as process:
        wait_for_line(process, "hello worker")
        wait_for_line(process, "hello worker")
        for one in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # mpirun, signalled first, may have ended its ranks already
                one.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 143
        assert "status interrupted" in said
    assert job.left() == []


def test_workers_that_do_not_stop_are_killed_after_the_grace(job: Dummies) -> None:
    with driver(job, job.spec("hang_deaf,until_stop", "serve", grace_secs=5.0)) as process:
        wait_for_line(process, "progress worker 1")
        wait_for_file(job.run_dir / "deaf_0")
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "done worker 1" in said and time.monotonic() > start + 5
        print(f"killed after the grace in {time.monotonic() - start:.2f} s")
    assert job.left() == []


def test_a_stopping_run_tells_which_server_it_waits_for(job: Dummies) -> None:
    with driver(job, job.spec("until_told,until_told", "serve_deaf")) as process:
        wait_for_line(process, "progress worker 1")
        process.send_signal(signal.SIGINT)
        wait_for_line(process, "SIGINT: stopping: waiting for workers 0–1")
        (job.run_dir / "end").touch()
        wait_for_line(process, "parallax_runner: stopping: waiting for server 0 to end")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130
    assert job.left() == []


def test_a_second_signal_kills_at_once(job: Dummies) -> None:
    with driver(job, job.spec("hang,hang", "serve", grace_secs=60.0)) as process:
        wait_for_line(process, "hello worker")
        process.send_signal(signal.SIGINT)
        wait_for_line(process, "SIGINT: stopping: waiting for")
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 130
    assert job.left() == []


@pytest.mark.parametrize("workers", ["hang,hang", "mute_hang,mute_hang", "hang_deaf,hang_deaf"])
def test_nobody_outlives_a_killed_driver(job: Dummies, workers: str) -> None:
    with driver(job, job.spec(workers, "serve_deaf")) as process:
        wait_for_line(process, "hello server" if workers.startswith("mute") else "hello worker")
        if "deaf" in workers:
            wait_for_file(job.run_dir / "deaf_0")
            wait_for_file(job.run_dir / "deaf_1")
        process.kill()
        process.wait()
        print(f"{workers}: gone {job.wait_until_none_left(60):.2f} s after the driver was killed")
