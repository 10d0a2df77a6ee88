"""The thread that sends: what a store does, good or bad, reaches neither the run nor its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.track.mlflow import sender
from parallax_runner.track.mlflow.delivery import Delivery
from parallax_runner.track.mlflow.journal import Header, Journal, read_header
from parallax_runner.track.mlflow.run_id import write_run
from parallax_runner.track.mlflow.sender import Sender
from parallax_runner.track.mlflow.store import OutOfReach, Refused, StoreRun
from tests.single.track.mlflow.fake_store import FakeStore

WAIT_SECS = 20.0


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "SEND_EVERY_SECS", 0.01)
    monkeypatch.setattr(sender, "MAX_PAUSE_SECS", 0.01)
    monkeypatch.setattr(sender, "OUT_OF_REACH_SECS", 0.3)
    monkeypatch.setattr(sender, "TELL_SECS", 60.0)  # a busy machine may need more than 3 s


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "journal.jsonl", Header(uri="fake:", experiment="e", run_name=None))
    journal.append_start(summary={})
    return journal


def metric(journal: Journal, step: int) -> None:
    journal.append("metrics", step=step, time_ms=1, metrics={"train/loss": 1.0})


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_entries_are_sent_while_the_run_goes_on(journal: Journal) -> None:
    store = FakeStore()
    thread = Sender(journal.path, store.open_run, read_header(journal.path))
    metric(journal, 1)
    wait_until(lambda: len(store.points) == 1)
    metric(journal, 2)
    wait_until(lambda: len(store.points) == 2)
    assert thread.run_id is not None
    journal.append_end("finished")
    assert thread.close()
    assert store.names[-1] == "ended"


def test_a_store_that_comes_back_gets_everything_in_order(
    journal: Journal, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    store = FakeStore()
    thread = Sender(journal.path, store.open_run, read_header(journal.path))
    metric(journal, 1)
    wait_until(lambda: len(store.points) == 1)
    store.up = False
    for step in range(2, 50):
        metric(journal, step)
        time.sleep(0.005)
    wait_until(lambda: thread.trouble is not None)
    store.up = True
    wait_until(lambda: thread.trouble is None)
    journal.append_end("finished")
    assert thread.close()
    assert [point.step for point in store.points] == list(range(1, 50))
    # In mid run it is no matter for the terminal, and one line for the log.
    assert capsys.readouterr().err == ""
    assert len([record for record in caplog.records if "unreachable" in record.message]) == 1


def test_the_end_does_not_wait_long_for_a_store_that_is_down(
    journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    store = FakeStore()
    store.up = False
    thread = Sender(journal.path, store.open_run, read_header(journal.path))
    wait_until(lambda: thread.trouble is not None)
    journal.append_end("finished")
    assert not thread.close()
    assert capsys.readouterr().err.count("unreachable") == 1


def test_a_job_that_waits_for_its_sweeps_run_calls_no_store_out_of_reach(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sweep's own sender is still making the database."""
    (tmp_path / "sweep" / "job").mkdir(parents=True)
    above = Journal(tmp_path / "sweep" / "journal.jsonl", Header(uri="fake:", experiment="e", run_name=None))
    above.append_start(summary={})
    header = Header(uri="fake:", experiment="e", run_name=None, parent=str(tmp_path / "sweep"))
    journal = Journal(tmp_path / "sweep" / "job" / "journal.jsonl", header)
    journal.append_start(summary={})
    store = FakeStore()
    thread = Sender(journal.path, store.open_run, header)
    wait_until(lambda: thread.trouble is not None)
    assert "is not in MLflow yet" in str(thread.trouble)
    store.up = False  # what is wrong with the store itself is told all the same
    write_run(tmp_path / "sweep", run_id="above", uri="fake:", experiment_id="1")
    wait_until(lambda: str(thread.trouble) == "down")
    journal.append_end("finished")
    thread.close()
    told = capsys.readouterr().err
    assert "is not in MLflow yet" not in told and told.count("MLflow is unreachable: down") == 1


@pytest.mark.parametrize(
    ("uri", "reason", "failures", "told"),
    [
        ("sqlite:////x/y.db", "database is locked", 2, 0),
        ("sqlite:////x/y.db", "database is locked", 3, 1),
        ("sqlite:////x/y.db", "file is not a database", 1, 1),
        ("http://host", "database is locked", 1, 1),
    ],
)
def test_a_database_that_is_being_created_may_fail_twice(
    uri: str,
    reason: str,
    failures: int,
    told: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sender, "OUT_OF_REACH_SECS", WAIT_SECS)  # a busy machine may need more than 5 s for all calls
    journal = Journal(tmp_path / "journal.jsonl", Header(uri=uri, experiment="e", run_name=None))
    journal.append_start(summary={})
    store, calls = FakeStore(), []

    def open_run(*arguments: Any) -> StoreRun:
        calls.append(arguments)
        store.error = OutOfReach(reason) if len(calls) <= failures else None
        return store.open_run(*arguments)

    thread = Sender(journal.path, open_run, read_header(journal.path))
    journal.append_end("finished")
    assert thread.close()
    assert capsys.readouterr().err.count(f"MLflow is unreachable: {reason}") == told


def test_the_end_does_not_wait_for_ever_for_a_call_that_hangs(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "MAX_END_SECS", 0.3)
    release = threading.Event()

    def hang(*arguments: Any) -> StoreRun:
        release.wait(WAIT_SECS)
        return FakeStore().open_run(*arguments)

    thread = Sender(journal.path, hang, read_header(journal.path))
    journal.append_end("finished")
    assert not thread.close()
    release.set()


def test_a_refused_run_is_told_and_not_tried_again(journal: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    store = FakeStore()
    store.error = Refused("the experiment was deleted")
    thread = Sender(journal.path, store.open_run, read_header(journal.path))
    wait_until(lambda: thread.trouble is not None)
    journal.append_end("finished")
    assert not thread.close()
    assert (
        capsys.readouterr().err.count("MLflow rejected this run: the experiment was deleted. Training continues") == 1
    )


def test_a_surprise_is_told(journal: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    store = FakeStore()
    store.error = KeyError("x")
    thread = Sender(journal.path, store.open_run, read_header(journal.path))
    journal.append_end("finished")
    assert not thread.close()
    assert "KeyError" in capsys.readouterr().err


def test_it_waits_for_another_process_that_sends_the_same_journal(journal: Journal) -> None:
    store = FakeStore()
    with Delivery(journal.path, store.open_run, read_header(journal.path)):
        thread = Sender(journal.path, store.open_run, read_header(journal.path))
        metric(journal, 1)
        time.sleep(0.3)
        assert store.points == []
    wait_until(lambda: len(store.points) == 1)
    journal.append_end("finished")
    assert thread.close()


def test_a_run_sends_its_own_journal_alone(journal: Journal, tmp_path: Path) -> None:
    journal.append_end("failed")
    present = Journal(tmp_path / "journal.2.jsonl", Header(uri="fake:", experiment="e", run_name=None))
    present.append_start(summary={})
    present.append_end("finished")
    store = FakeStore()
    assert Sender(present.path, store.open_run, read_header(present.path)).close()
    assert [what for name, what in store.calls if name == "ended"] == ["finished"]
    assert not (tmp_path / "journal.sent").exists(), "action=sync sends the earlier run"


@pytest.mark.parametrize("uri", [None, "http://host"])
def test_an_error_names_its_store_in_front_of_its_reason(uri: str | None) -> None:
    """A message that names the store already shows only the reason."""
    error = OutOfReach("no answer", uri=uri)
    assert error.reason == "no answer"
    assert str(error) == ("no answer" if uri is None else "tracking.uri=http://host: no answer")
