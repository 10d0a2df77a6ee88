"""Where the ranks of a calibration go."""

from parallax_runner.config.resource_info import read_hosts
from parallax_runner.driver.jobs.calibrate import spread
from parallax_runner.worker.calibration.__main__ import _host_of

LINES = ["a.example: 0,1", "b.example: 0", "c.example: 0,1"]


def lines(ranks: int) -> list[str]:
    return [str(host) for host in spread(read_hosts(LINES), ranks)]


def test_two_ranks_are_on_two_hosts() -> None:
    assert lines(2) == ["a.example: 0", "b.example: 0"]


def test_all_ranks_are_where_a_run_has_them() -> None:
    assert lines(5) == LINES


def test_ranks_fill_hosts_in_order() -> None:
    assert [_host_of(rank, LINES) for rank in range(5)] == [0, 0, 1, 2, 2]
    assert _host_of(3, None) == 0


def test_two_ranks_share_the_only_slot() -> None:
    assert [str(host) for host in spread(read_hosts(["a.example: 0"]), 2)] == ["a.example: 0"]
    assert [_host_of(rank, ["a.example: 0"]) for rank in range(2)] == [0, 0]
