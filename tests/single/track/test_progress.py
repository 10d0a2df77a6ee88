import io

import pytest

from parallax_runner.track.progress import ProgressDisplay, Standing, format_duration, format_line


@pytest.mark.parametrize(
    ("standing", "line"),
    [
        (Standing(0, 10), "step 0/10"),
        (Standing(5, 10, loss=1.25), "step 5/10  loss 1.2500"),
        (
            Standing(120, 1000, loss=5.43212, steps_per_sec=10.0, words_per_sec=12345.6, examples_per_sec=20.0),
            "step 120/1000  loss 5.4321  12,346 words/s  left 1:28",
        ),
        (Standing(10, 10, examples_per_sec=999.6, steps_per_sec=2.0), "step 10/10  1,000 examples/s  left 0:00"),
        (Standing(1, 10, loss=float("nan"), steps_per_sec=0.0), "step 1/10  loss nan"),
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


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    with ProgressDisplay(steps=25, log_every=10, stream=stream) as display:
        display.update(Standing(7, 25, loss=1.5))
    assert "7/25" in stream.getvalue()
    assert "loss 1.5000" in stream.getvalue()
