"""Shares are of the ideal of the same round; tables show what the measurements say."""

import pytest

from benchmarks.modes import IDEAL, Measurement, summarize
from benchmarks.runs import Predicted
from benchmarks.tables import markdown, rows_of_modes


def measured(number: int, mode: str, rate: float, sent_bytes: float = 0.0) -> Measurement:
    return Measurement(
        round=number,
        mode=mode,
        rate=rate,
        summary_rate=rate,
        unit="words/s",
        step_ms_p50=1000 / rate,
        sent_bytes=sent_bytes,
        predicted=Predicted(4_970_000, measured=False) if mode == "hybrid" else None,
        overlap=1.0 if mode == IDEAL else None,
        load_average=0.0,
        busy_share=0.0,
    )


ROUNDS = [
    measured(0, IDEAL, 1000),
    measured(0, "hybrid", 800, 3e6),
    measured(1, IDEAL, 500),  # a slow moment of the machine
    measured(1, "hybrid", 400, 3e6),
    measured(2, IDEAL, 1000),
    measured(2, "hybrid", 900, 3e6),
]


def test_each_share_is_of_its_own_round() -> None:
    ideal, hybrid = summarize(ROUNDS)
    assert (ideal.mode, ideal.share.median, ideal.share.low) == (IDEAL, 1, 1)
    assert (hybrid.share.low, hybrid.share.median, hybrid.share.high) == pytest.approx((0.8, 0.8, 0.9))
    assert (hybrid.rate.low, hybrid.rate.median, hybrid.rate.high) == (400, 800, 900)
    assert hybrid.sent_bytes == 3e6


def test_a_mode_without_its_ideal_is_an_error() -> None:
    with pytest.raises(KeyError, match="1"):  # the round
        summarize([measured(0, IDEAL, 1000), measured(1, "hybrid", 800)])


def test_rows_of_the_table() -> None:
    rows = rows_of_modes(summarize(ROUNDS))
    ideal, hybrid = (dict(zip(rows.head, cells, strict=True)) for cells in rows.body)
    assert (hybrid["words/s"], hybrid["share of ideal"], hybrid["bytes sent"]) == ("800", "0.80", "3 MB")
    assert (hybrid["predicted"], ideal["predicted"]) == ("≤ 4.97 MB", "unknown")


def test_markdown_has_a_row_a_mode() -> None:
    lines = markdown(rows_of_modes(summarize(ROUNDS))).splitlines()
    assert lines[0].startswith("| mode | words/s |")
    assert lines[1].startswith("| --- | ---: |")
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| ideal", "| hybrid"]
    assert len({line.count("|") for line in lines}) == 1
