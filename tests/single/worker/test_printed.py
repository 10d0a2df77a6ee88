"""What a script prints in a worker, as the driver is told of it."""

from __future__ import annotations

import io
from typing import Any

import pytest

from parallax_runner.worker.printed import Printed


class Told:
    """Stands for the connection to the driver."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def report(self, kind: str, *, stream: str, line: str) -> None:
        assert (kind, stream) == ("printed", "stdout")
        self.lines.append(line)


@pytest.fixture
def told() -> Told:
    return Told()


def printed(told: Any) -> tuple[Printed, io.BytesIO]:
    """A stream, and the log behind it."""
    log = io.BytesIO()
    return Printed(io.TextIOWrapper(log, encoding="utf-8", write_through=True), "stdout", told), log


def test_whole_lines_are_told_and_all_is_logged(told: Told) -> None:
    stream, log = printed(told)
    stream.write("a\nb")
    stream.write("c\r\n\nd")
    assert told.lines == ["a", "bc", ""]
    stream.finish()
    assert told.lines == ["a", "bc", "", "d"]
    assert log.getvalue() == b"a\nbc\r\n\nd"


@pytest.mark.parametrize("state", ["\r{}%", "{}%\r"])
def test_of_a_bar_only_its_last_state(told: Told, state: str) -> None:
    stream, _ = printed(told)
    for number in range(1000):
        stream.write(state.format(number))
        assert len(stream._line) < 10
    stream.write("\n")
    assert told.lines == ["999%"]


def test_it_is_reconfigured_and_takes_bytes_as_the_log_does(told: Told) -> None:
    stream, log = printed(told)
    stream.reconfigure(line_buffering=True)
    stream.buffer.write(b"bytes\n")
    stream.flush()
    assert log.getvalue() == b"bytes\n"
