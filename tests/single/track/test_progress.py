import io
import re

import pytest

from parallax_runner.track.progress import ProgressDisplay, Standing, format_duration, format_line, format_validation


@pytest.mark.parametrize(
    ("standing", "line"),
    [
        (Standing(0, 10), "step 0/10"),
        (Standing(5, 10, loss=1.25), "step 5/10  loss 1.2500"),
        (
            Standing(5, 10, loss=1.25, steps_per_sec=2.0, metrics={"auc": 0.75, "mae": 2.0, "mse": 1.0, "a": 1.0}),
            "step 5/10  loss 1.2500  auc 0.7500  mae 2.0000  mse 1.0000  2 steps/s  0:02 left",
        ),
        (
            Standing(120, 1000, loss=5.43212, steps_per_sec=10.0, words_per_sec=12345.6, examples_per_sec=20.0),
            "step 120/1000  loss 5.4321  12,346 words/s  1:28 left",
        ),
        (Standing(10, 10, examples_per_sec=999.6, steps_per_sec=2.0), "step 10/10  1,000 examples/s  0:00 left"),
        (Standing(1, 10, loss=float("nan"), steps_per_sec=0.0), "step 1/10  loss nan  0 steps/s"),
        (Standing(5, 10, steps_per_sec=1234.0), "step 5/10  1.23e+03 steps/s  0:00 left"),
    ],
)
def test_lines(standing: Standing, line: str) -> None:
    assert format_line(standing) == line


@pytest.mark.parametrize(
    ("secs", "text"), [(0.4, "0:00"), (59.7, "1:00"), (83, "1:23"), (3599.9, "1:00:00"), (7283, "2:01:23")]
)
def test_durations(secs: float, text: str) -> None:
    assert format_duration(secs) == text


def test_plain_lines_every_log_every_steps_and_at_the_end() -> None:
    stream = io.StringIO()
    with ProgressDisplay(steps=25, log_every=10, stream=stream) as display:
        for step in (1, 9, 11, 12, 20, 20, 24, 25, 25):
            display.update(Standing(step, 25))
    assert stream.getvalue().splitlines() == ["step 11/25", "step 20/25", "step 25/25"]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal is sent."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    return stream


def test_a_terminal_gets_a_bar(terminal: io.StringIO) -> None:
    with ProgressDisplay(steps=25, log_every=10, stream=terminal) as display:
        display.update(Standing(7, 25, loss=1.5))
    assert "7/25" in terminal.getvalue()
    assert "loss 1.5000" in terminal.getvalue()


def shown_last(display: ProgressDisplay, terminal: io.StringIO) -> str:
    """What the bar has become, without colours."""
    assert display._bar is not None
    with display._bar._lock:  # else the bar may draw itself in between
        before = len(terminal.getvalue())
        display._bar.refresh()
        return re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", terminal.getvalue()[before:])


def test_between_reports_the_bar_shows_the_speed_since_the_last_one(terminal: io.StringIO) -> None:
    now_secs = 100.0
    with ProgressDisplay(steps=1000, log_every=500, stream=terminal, clock=lambda: now_secs) as display:
        display.update(Standing(1, 1000, loss=9.0, steps_per_sec=1.0, words_per_sec=50.0, examples_per_sec=5.0))
        now_secs += 2
        display.advance(9)
        assert re.search(r"9/1000 .* loss 9.0000  200 words/s  4:08 left", shown_last(display, terminal))
        now_secs += 2
        display.advance(41)
        assert re.search(r"41/1000 .* loss 9.0000  500 words/s  1:36 left", shown_last(display, terminal))
        display.update(Standing(42, 1000, loss=8.0, steps_per_sec=4.0, examples_per_sec=20.0))
        now_secs += 1
        display.advance(44)
        assert re.search(r"44/1000 .* loss 8.0000  10 examples/s  7:58 left", shown_last(display, terminal))


def test_on_a_narrow_terminal_the_bar_is_shorter_and_the_rest_whole(
    terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with ProgressDisplay(steps=100_000_000, log_every=10, stream=terminal) as display:
        display.update(Standing(65_718, 100_000_000, loss=65.0779, steps_per_sec=490.0, examples_per_sec=31_372.0))
        shown = shown_last(display, terminal).strip()
    assert re.fullmatch(r"step +65718/100000000 ━+ +loss 65.0779  31,372 examples/s  56:39:08 left", shown)
    assert len(shown) <= 80


def test_the_bar_goes_back_with_reports_alone(terminal: io.StringIO) -> None:
    with ProgressDisplay(steps=100, log_every=10, stream=terminal) as display:
        display.update(Standing(50, 100, loss=2.0))
        display.advance(49)  # was overtaken by the report
        assert "50/100" in shown_last(display, terminal)
        display.update(Standing(21, 100, loss=2.5))  # started again from a checkpoint
        display.advance(23)
        assert "23/100" in shown_last(display, terminal)


def test_heartbeats_write_no_lines() -> None:
    stream = io.StringIO()
    with ProgressDisplay(steps=25, log_every=10, stream=stream) as display:
        for step in (5, 10, 20, 25):
            display.advance(step)
    assert stream.getvalue() == ""


def test_after_a_restart_steps_are_shown_again() -> None:
    stream = io.StringIO()
    with ProgressDisplay(steps=50, log_every=10, stream=stream) as display:
        for step in (10, 20, 30):
            display.update(Standing(step, 50))
        display.restart()
        for step in (11, 20, 30):
            display.update(Standing(step, 50))
    assert stream.getvalue().splitlines() == [f"step {step}/50" for step in (10, 20, 30, 11, 20, 30)]


def test_after_a_restart_the_bar_moves_before_the_first_report(terminal: io.StringIO) -> None:
    with ProgressDisplay(steps=100, log_every=10, stream=terminal) as display:
        display.update(Standing(50, 100, loss=2.0))
        display.restart()
        assert "starting" in shown_last(display, terminal)
        display.advance(23)
        assert "23/100" in shown_last(display, terminal)


def test_a_line_of_its_own_stays_above_the_bar(terminal: io.StringIO) -> None:
    with ProgressDisplay(steps=25, log_every=10, stream=terminal) as display:
        display.show_phase("building the graph")
        display.say("resumed from [here] at step 7")
        display.update(Standing(7, 25, loss=1.5))
        display.show_phase("too late")
    shown = terminal.getvalue()
    assert "resumed from [here] at step 7" in shown and "building the graph" in shown
    assert "too late" not in shown


def test_phases_are_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with ProgressDisplay(steps=25, log_every=10, stream=stream) as display:
        for phase in ("starting", "building", "starting", "building"):
            display.show_phase(phase)
        display.update(Standing(25, 25))
    assert stream.getvalue().splitlines() == ["starting", "building", "step 25/25"]


def test_validations() -> None:
    line = format_validation(200, {"validation/loss": 3.84701, "validation/perplexity": 46.852})
    assert line == "validation after step 200: loss 3.847, perplexity 46.85"
