"""What scripts/bench partitions makes of its numbers."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import parse
from benchmarks.hosts.network import Link
from benchmarks.partitions import SWEEP, Found, Searched, searched_of

SWEPT = {1: (0.30, 0.31), 4: (0.20, 0.22), 16: (0.21, 0.213), 64: (0.40, 0.41)}


def searched(choice: int) -> Searched:
    return Searched(candidates=(4, 16, 64), choice=choice, steps=75, secs=75 * 0.21 + 21.0)


def found(*choices: int) -> Found:
    return Found(4, Link(1000), tuple(searched(choice) for choice in choices), SWEPT, 0)


def test_a_search_costs_what_it_took_beyond_its_steps() -> None:
    assert searched(4).cost_share(0.21) == pytest.approx(21.0 / 2100)
    assert searched(4).cost_share(1.0) == 0.0


def test_the_verdict_is_by_the_sweep() -> None:
    assert found(4).best == 4
    assert found(4).verdict(searched(4)) == "within 5 % of the best (+0.0 %)"
    assert found(16).verdict(searched(16)).startswith("within 5 % of the best (+0.7 %)")
    assert found(64).verdict(searched(64)) == "+92.9 %, outside the spread of the best one"
    spread = Found(4, None, (), {4: (0.20, 0.30), 8: (0.28, 0.29)}, 0)
    assert spread.verdict(searched(8)) == "+14.0 %, within the spread of the best one"
    assert found(4).verdict(searched(2)) == "not swept"


def test_what_people_are_told() -> None:
    (where, first, _) = found(4, 16).facts()
    assert "4 workers and 4 servers on 4 hosts over links of 1000 Mbit/s" in where and where.endswith("sweep: 4")
    assert "tried 4, 16, 64 (3 trials), chose 4: within 5 %" in first
    assert first.endswith("1.00 % of a run of 10,000 steps")
    rows = found(4, 4, 16).rows()
    assert [line[0] for line in rows.body] == ["1", "4", "16", "64"]
    assert [line[-1] for line in rows.body] == ["0", "2", "1", "0"]
    assert rows.body[3][3] == "1.93"


def test_numbers_come_from_the_summary() -> None:
    summary = {
        "partition_candidates": [4, 16],
        "partition_choice": 16,
        "partition_search_steps": 50,
        "partition_search_secs": 12.5,
    }
    assert searched_of(summary) == Searched((4, 16), 16, 50, 12.5)


def test_the_command_line() -> None:
    asked = parse(["partitions", "--hosts", "2", "--steps", "5", "data.vocab_size=2000"])
    assert (asked.kind, asked.hosts, asked.mbit, asked.steps) == ("partitions", 2, 1000, 5)
    assert asked.overrides == ["data.vocab_size=2000"]
    assert parse(["partitions"]).hosts == 4
    assert SWEEP == (1, 2, 4, 8, 16, 32, 64)
