from parallax_runner.launch.launchers.launcher import RankExit
from parallax_runner.launch.mpirun.report import find_rank_exit, lines_of_rank, was_told_to_end

LINE = "-" * 74
# As Open MPI 5.0.11 wrote them.
KILLED = f"""[1,0]<stderr>: exited on signal 4
{LINE}
prterun noticed that process rank 1 with PID 4455 on node vm exited on
signal 9 (Killed).
{LINE}
"""
EXITED = f"""{LINE}
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-4528@1,12]
   Exit code:    3
{LINE}
"""
ABORTED = f"""{LINE}
MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
  Proc: [[10750,1],1]
  Errorcode: 7

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
{LINE}
"""
IMPROPER = f"""{LINE}
prterun has exited due to process rank 1 with PID 17056 on node vm exiting
improperly. There are three reasons this could occur:

1. this process did not call "init" before exiting, but others in the
job did. This can cause a job to hang indefinitely while it waits for
all processes to call "init". By rule, if one process calls "init",
then ALL processes must call "init" prior to termination.
{LINE}
"""
REFUSED = f"""{LINE}
An unrecognized option was included on the mpirun command line:

  Option: --no-such-flag
{LINE}
"""


def test_rank_and_status_are_read() -> None:
    assert find_rank_exit(KILLED) == RankExit(1, -9)
    assert find_rank_exit(EXITED) == RankExit(12, 3)
    assert find_rank_exit(ABORTED) == RankExit(1, 7)
    assert find_rank_exit(IMPROPER) == RankExit(1, 0)
    assert find_rank_exit(REFUSED) is None
    assert find_rank_exit("") is None


def test_what_a_rank_wrote_is_not_taken_for_mpirun() -> None:
    spoof = "[1,0]<stdout>: prterun noticed that process rank 0 with PID 1 on node vm exited on signal 9 (Killed)."
    assert find_rank_exit(spoof) is None


def test_lines_of_one_rank() -> None:
    text = "[1,1]<stderr>: Traceback\n[1,0]<stdout>: fine\n[1,1]<stderr>:   indented\n[1,1]<stderr>:\nuntagged\n"
    assert lines_of_rank(text, 1) == ("Traceback", "  indented", "")
    assert lines_of_rank(text, 2) == ()


def test_after_a_signal_to_itself_mpirun_says_nothing() -> None:
    assert was_told_to_end("[1,0]<stdout>: working\n\n", 1)
    assert not was_told_to_end(REFUSED, 1)
    assert not was_told_to_end("", 213)
