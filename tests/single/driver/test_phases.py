"""Which lines tell of a run's start."""

import io
from types import SimpleNamespace

import pytest

from parallax_runner.driver.phases import on_stage, starting
from parallax_runner.process import stage_times
from parallax_runner.process.stage_times import stage
from parallax_runner.track.progress import ProgressDisplay


@pytest.mark.parametrize(
    ("workers", "servers", "line"),
    [
        (1, 0, "starting 1 worker"),
        (2, 1, "starting 2 workers and 1 server"),
        (4, 2, "starting 4 workers and 2 servers"),
    ],
)
def test_what_is_started(workers: int, servers: int, line: str) -> None:
    assert starting(SimpleNamespace(workers=workers, servers=servers)) == line


@pytest.mark.parametrize(("step", "last"), [(0, "setting initial values"), (200, "restoring step 200")])
@pytest.mark.parametrize(("graph", "shown"), [("graph", "building the graph"), ("load the graph", "loading the graph")])
def test_phases_are_those_of_the_chief_in_their_order(
    graph: str, shown: str, step: int, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    display = ProgressDisplay(steps=9, log_every=1, stream=stream)
    heard = on_stage(display.show_phase, step)
    monkeypatch.setattr(stage_times, "_on_begin", lambda name: heard(0, name=name))
    for _ in range(2):  # a restart shows nothing twice
        for name in ("import TensorFlow", "data", graph, "rewrite", "open a session", "initialize"):
            with stage(name):
                heard(1, name=name)
    lines = ["loading TensorFlow", shown, "rewriting the graph for each worker", last]
    assert stream.getvalue().splitlines() == lines
