import pytest

from parallax_runner.launch.blame.first_death import Failure, Member, first_lost, reason_of, signal_name
from parallax_runner.launch.control import wire
from parallax_runner.launch.launchers.launcher import RankExit


def lost(role: str, index: int, secs: float, *, error: str | None = None, status: int | None = None) -> Member:
    return Member(role, index, said_hello=True, lost_secs=secs, error=error, exit_status=status)


def test_the_first_in_time_is_blamed() -> None:
    first = lost("worker", 1, 10.0, error="ValueError: x")
    assert first_lost([Member("worker", 2), lost("worker", 0, 10.3, error="Unavailable"), first], None) is first


def test_a_killed_process_comes_before_an_error_that_was_seen_earlier() -> None:
    killed = lost("server", 0, 10.2, status=-9)
    assert first_lost([lost("worker", 0, 10.0, error="UnavailableError"), killed], None) is killed


def test_a_process_that_is_gone_elsewhere_comes_before_an_error_that_was_seen_earlier() -> None:
    gone = lost("worker", 1, 10.2, status=255)
    gone.is_gone = True
    assert first_lost([lost("worker", 0, 10.0, error="HorovodInternalError"), gone], None) is gone
    assert reason_of(gone) == "its process was killed, or the connection to its machine is lost"


@pytest.mark.parametrize("number", [15, 6])
def test_a_process_that_was_told_to_end_or_gave_up_only_follows(number: int) -> None:
    first = lost("worker", 1, 10.0, error="ValueError: x")
    assert first_lost([lost("worker", 0, 10.1, status=-number), first], None) is first


def test_nobody_but_an_outsider_tells_a_server_to_end() -> None:
    server = lost("server", 0, 10.1, status=-15)
    assert first_lost([lost("worker", 0, 10.0, error="UnavailableError"), server], None) is server


def test_a_server_that_gave_up_only_follows() -> None:
    first = lost("worker", 1, 10.0, error="ValueError: x")
    assert first_lost([lost("server", 0, 10.1, status=-6), first], None) is first


def test_a_process_that_explained_itself_and_then_crashed_only_follows() -> None:
    first = lost("worker", 0, 10.0)
    follower = lost("worker", 1, 10.5, error="HorovodInternalError", status=-11)
    assert first_lost([first, follower], None) is first


def test_a_death_long_after_is_another_accident() -> None:
    first = lost("worker", 0, 10.0, error="ValueError: x")
    assert first_lost([first, lost("server", 0, 30.0, status=-9)], None) is first


def test_mpirun_knows_better_than_the_clock_who_was_silent() -> None:
    silent, named = lost("worker", 0, 10.0), lost("worker", 1, 10.01, status=3)
    assert first_lost([silent, named], RankExit(1, 3)) is named
    explained = lost("worker", 0, 10.0, error="ValueError: x")
    assert first_lost([explained, named], RankExit(1, 3)) is explained


def test_nobody_to_blame_is_an_error() -> None:
    with pytest.raises(ValueError, match="no member is lost"):
        first_lost([Member("worker", 0)], None)


CUT_OFF = "its connection to the driver broke, because the network between the two machines failed"


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (lost("worker", 0, 1.0, error="ValueError: x", status=-11), "ValueError: x"),
        (lost("worker", 0, 1.0, status=-9), "killed by signal 9 (SIGKILL)"),
        (lost("worker", 0, 1.0, status=3), "exit status 3"),
        (lost("worker", 0, 1.0, status=wire.CUT_OFF_STATUS), CUT_OFF),
        (lost("worker", 0, 1.0, status=0), "ended before its work was done (exit status 0)"),
        (lost("worker", 0, 1.0), "died without a message"),
    ],
)
def test_reasons(member: Member, reason: str) -> None:
    assert reason_of(member) == reason


def test_signals_without_a_name() -> None:
    assert signal_name(40) == "signal 40"


def test_a_failure_reads_as_one_line() -> None:
    assert str(Failure("worker", 1, "h2", "exit status 3", ())) == "worker 1 on h2: exit status 3"
    assert str(Failure("mpirun", 0, "", "exit status 213", ())) == "mpirun: exit status 213"
