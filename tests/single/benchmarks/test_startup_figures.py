"""What the processes log of their stages is read back, and adds up."""

import logging
import time

import pytest

from benchmarks.stage_log import Stage, parse
from benchmarks.timeline import measure, medians
from parallax_runner.process import stage_times as stages


def test_what_a_process_writes_is_read_back(caplog: pytest.LogCaptureFixture) -> None:
    before = time.time()
    with caplog.at_level(logging.INFO, logger="parallax_runner"):
        with stages.stage("open the door"):
            time.sleep(0.05)
        stages.tell("told", 1.25)
    formatter = logging.Formatter(stages.FORMAT)
    written = ["some other line", *(formatter.format(record) for record in caplog.records)]
    door, told = parse(written)
    assert (door.name, told.name, told.secs) == ("open the door", "told", 1.25)
    assert 0.05 <= door.secs < 5
    assert before - 0.01 <= door.ended - door.secs + 0.01 and told.ended <= time.time() + 0.01


def test_a_decorated_function_tells_of_each_call(caplog: pytest.LogCaptureFixture) -> None:
    @stages.stage("data")
    def load(number: int) -> int:
        return number + 1

    with caplog.at_level(logging.INFO, logger="parallax_runner"):
        assert [load(1), load(2)] == [2, 3]
    assert len(caplog.records) == 2


def test_age_of_this_process() -> None:
    age = stages.process_age_secs()
    time.sleep(0.1)
    assert 0 < age < stages.process_age_secs() - 0.05


STAGES = {
    "driver": [
        Stage("start of Python", 0.5, 100.5),
        Stage("import TensorFlow", 2.0, 102.5),
        Stage("first step", 1.0, 111.0),
    ],
    "worker_0": [
        Stage("import TensorFlow", 3.0, 107.0),
        Stage("rewrite", 0.2, 109.0),
        Stage("rewrite", 0.7, 115.0),
        Stage("export the model", 0.5, 116.0),
    ],
    "worker_1": [Stage("import TensorFlow", 4.0, 108.0), Stage("rewrite", 0.1, 109.5)],
    "server_0": [Stage("import TensorFlow", 9.0, 107.0)],
    "mpirun": [],
}


def test_the_first_step_begins_before_it_is_told() -> None:
    startup = measure(STAGES, started=100.0)
    assert startup.first_step_secs == pytest.approx(10.0)


def test_imports_are_the_drivers_and_the_slowest_workers() -> None:
    """A server starts beside the workers: its import is on nobody's path alone."""
    startup = measure(STAGES, started=100.0)
    assert startup.tensorflow_secs == pytest.approx(2.0 + 4.0)
    assert startup.own_secs == pytest.approx(4.0)


def test_rows_are_of_the_slowest_process_of_a_kind() -> None:
    rows = {(row.process, row.stage): row for row in measure(STAGES, started=100.0).rows}
    assert rows["worker", "rewrite"].secs == pytest.approx(0.2)
    assert rows["worker", "import TensorFlow"].ends_secs == pytest.approx(8.0)


def test_what_comes_after_the_first_step_is_none_of_the_start() -> None:
    rows = {(row.process, row.stage): row for row in measure(STAGES, started=100.0).rows}
    assert rows["worker", "rewrite"].ends_secs == pytest.approx(9.0)
    assert ("driver", "first step") not in rows and ("worker", "export the model") not in rows


def test_without_a_first_step() -> None:
    with pytest.raises(ValueError, match="no first step"):
        measure({"driver": []}, started=0.0)


def test_medians_of_several_starts() -> None:
    starts = [measure(STAGES, started=started) for started in (100.0, 99.0, 95.0)]
    middle = medians(starts)
    assert middle.first_step_secs == pytest.approx(11.0)
    assert middle.own_secs == pytest.approx(5.0)
    [row] = [row for row in middle.rows if (row.process, row.stage) == ("worker", "rewrite")]
    assert row.secs == pytest.approx(0.2)
