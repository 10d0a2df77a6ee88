"""One journal on its way: batches, order, and what happens when a call is lost. MLflow's part is its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from parallax_runner.track.mlflow.delivery import Busy, Delivery, next_batch, sent_path, unsent
from parallax_runner.track.mlflow.journal import Header, Journal, begun, read_header, writing
from parallax_runner.track.mlflow.journal_tracker import JournalTracker
from parallax_runner.track.mlflow.run_id import read_run, read_run_id
from parallax_runner.track.mlflow.store import OutOfReach, ParentUnknown
from tests.single.track.mlflow.fake_store import FakeStore

HEADER = Header(uri="fake:", experiment="e", run_name=None)


def new_journal(folder: Path, **fields: str | None) -> Journal:
    return Journal(folder / "journal.jsonl", Header(uri="fake:", experiment="e", run_name=None, **fields))


def metrics(journal: Journal, first: int, last: int, key: str = "train/loss") -> None:
    for step in range(first, last + 1):
        journal.append("metrics", step=step, time_ms=1000 + step, metrics={key: 1 / step})


def test_neighbours_go_together_up_to_what_one_call_takes(tmp_path: Path) -> None:
    journal, store = new_journal(tmp_path), FakeStore()
    journal.append_start()
    for number in range(3):
        journal.append("params", params={f"p{number}.{inner}": "1" for inner in range(60)})
    metrics(journal, 1, 2500)
    journal.append("artifact", path="a", folder="plots")
    journal.append("tags", tags={"a": "b"})
    journal.append_end("finished")
    with Delivery(journal.path, store.open_run, read_header(journal.path)) as delivery:
        assert delivery.send_all() == 1 + 1 + 3 + 2500 + 1 + 1 + 1
        assert not delivery.send_next()
    assert store.names == ["open", "running", *["log"] * 5, "artifact", "log", "ended"]
    batches = [what for name, what in store.calls if name == "log"]
    assert batches == [(0, 60, 0), (0, 60, 0), (1000, 60, 0), (1000, 0, 0), (500, 0, 0), (0, 0, 1)]
    assert [point.step for point in store.points] == list(range(1, 2501))
    assert store.points[6].time_ms == 1007


def test_an_empty_journal_has_no_batch(tmp_path: Path) -> None:
    journal = new_journal(tmp_path)
    assert next_batch(journal.path, journal.path.stat().st_size).entries == []


def test_nothing_is_passed_over_while_the_store_is_down(tmp_path: Path) -> None:
    journal, store = new_journal(tmp_path), FakeStore()
    metrics(journal, 1, 10)
    store.up = False
    with Delivery(journal.path, store.open_run, read_header(journal.path)) as delivery:
        for _ in range(3):
            with pytest.raises(OutOfReach):
                delivery.send_next()
        assert unsent(journal.path) == 11
        store.up = True
        delivery.send_all()
        store.up = False
        metrics(journal, 11, 20)
        with pytest.raises(OutOfReach):
            delivery.send_next()
        assert unsent(journal.path) == 10
        store.up = True
        delivery.send_all()
    assert [point.step for point in store.points] == list(range(1, 21))
    assert store.names.count("open") == 1
    assert unsent(journal.path) == 0


def test_another_process_goes_on_where_the_first_was(tmp_path: Path) -> None:
    journal, store = new_journal(tmp_path), FakeStore()
    metrics(journal, 1, 3)
    with Delivery(journal.path, store.open_run, read_header(journal.path)) as delivery:
        delivery.send_all()
    metrics(journal, 4, 6)
    with Delivery(journal.path, store.open_run, read_header(journal.path)) as delivery:
        delivery.send_all()
    assert [point.step for point in store.points] == [1, 2, 3, 4, 5, 6]
    (_, first), (_, second) = [call for call in store.calls if call[0] == "open"]
    assert first is None
    assert second.run_id == read_run_id(tmp_path)
    assert read_run(tmp_path)["uri"] == "fake:"


def test_a_position_of_another_journal_does_not_count(tmp_path: Path) -> None:
    journal = new_journal(tmp_path)
    metrics(journal, 1, 3)
    fields = {"journal_id": "other", "offset": 99, "run_id": "r", "experiment_id": "1", "uri": "fake:"}
    own = fields | {"journal_id": read_header(journal.path).journal_id}
    damaged = [own | {"offset": value} for value in (-1, 2**63, "x", None, True, 1.5)]
    damaged += [own | {"run_id": 3}, {"offset": 3}, [], {"offset": 3, "journal_id": own["journal_id"]}]
    for text in (*map(json.dumps, [fields, *damaged]), "", "{half", "[" * 100_000):
        sent_path(journal.path).write_text(text)
        assert unsent(journal.path) == 4


def test_one_entry_that_is_refused_costs_none_of_its_neighbours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal, store = new_journal(tmp_path), FakeStore()
    store.refused_keys = {"bad"}
    metrics(journal, 1, 2)
    metrics(journal, 3, 3, key="bad")
    metrics(journal, 4, 5)
    journal.append_end("finished")
    with Delivery(journal.path, store.open_run, read_header(journal.path)) as delivery:
        delivery.send_all()
    assert [point.step for point in store.points] == [1, 2, 4, 5]
    assert store.names[-1] == "ended"
    (said,) = [record.message for record in caplog.records]
    assert "bad" in said


def test_two_processes_do_not_send_one_journal(tmp_path: Path) -> None:
    journal, store = new_journal(tmp_path), FakeStore()
    with (
        Delivery(journal.path, store.open_run, read_header(journal.path)),
        pytest.raises(Busy, match="another process"),
        Delivery(journal.path, store.open_run, read_header(journal.path)),
    ):
        pass
    with Delivery(journal.path, store.open_run, read_header(journal.path)) as delivery:
        delivery.send_all()


def test_a_job_of_a_sweep_waits_for_the_run_of_the_sweep(tmp_path: Path) -> None:
    sweep, job, store = tmp_path / "sweep", tmp_path / "sweep" / "0", FakeStore()
    job.mkdir(parents=True)
    parent, child = new_journal(sweep), new_journal(job, parent=str(sweep))
    with Delivery(child.path, store.open_run, read_header(child.path)) as delivery, pytest.raises(ParentUnknown):
        delivery.send_next()
    with Delivery(parent.path, store.open_run, read_header(parent.path)) as delivery:
        delivery.send_all()
    with Delivery(child.path, store.open_run, read_header(child.path)) as delivery:
        delivery.send_all()
    assert store.parents == [None, read_run_id(sweep)]


def test_a_summary_written_before_the_run_was_known_gets_its_id(tmp_path: Path) -> None:
    journal, store = new_journal(tmp_path), FakeStore()
    summary = tmp_path / "summary.json"
    summary.write_text('{"status": "finished", "mlflow_run_id": null}\n')
    journal.append("artifact", path=str(summary), folder=None)
    with Delivery(journal.path, store.open_run, read_header(journal.path)) as delivery:
        delivery.send_all()
    assert json.loads(summary.read_text()) == {"status": "finished", "mlflow_run_id": read_run_id(tmp_path)}


def test_files_that_a_later_run_has_replaced_are_not_sent_as_the_earlier_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "summary.json").write_text('{"mlflow_run_id": null}')
    old, present, store = new_journal(tmp_path), Journal(tmp_path / "journal.2.jsonl", HEADER), FakeStore()
    for journal in (old, present):
        journal.append("artifact", path=str(tmp_path / "summary.json"), folder=None)
        journal.append("event", event="checkpoint", fields={"folder": str(tmp_path / ".outbox" / "model.ckpt-3")})
        journal.append_end("finished")
    with Delivery(old.path, store.open_run, read_header(old.path)) as delivery:
        delivery.send_all()
    assert store.names == ["open", "ended"]
    assert json.loads((tmp_path / "summary.json").read_text()) == {"mlflow_run_id": None}
    assert len([record for record in caplog.records if "a later run has replaced" in record.message]) == 1
    with Delivery(present.path, store.open_run, read_header(present.path)) as delivery:
        delivery.send_all()
    assert store.names[2:] == ["open", "artifact", "event", "ended"]


def test_only_the_present_run_of_a_folder_is_its_run(tmp_path: Path) -> None:
    old, store = new_journal(tmp_path), FakeStore()
    present = Journal(tmp_path / "journal.2.jsonl", HEADER)
    for journal in (present, old):
        with Delivery(journal.path, store.open_run, read_header(journal.path)) as delivery:
            delivery.send_all()
            if journal is present:
                assert delivery.opened is not None
                expected = delivery.opened.run_id
    assert read_run_id(tmp_path) == expected


def tracker_of(journal: Journal) -> JournalTracker:
    """One that only writes."""
    tracker = JournalTracker.__new__(JournalTracker)
    tracker._run_dir, tracker._journal = journal.path.parent, journal
    return tracker


def send(path: Path, store: FakeStore) -> list[object]:
    """Sends a journal; the files that the store was given."""
    with Delivery(path, store.open_run, read_header(path)) as delivery:
        delivery.send_all()
    return [what for name, what in store.calls if name in ("artifact", "event")]


def test_the_files_of_a_folder_that_was_moved_are_found(tmp_path: Path) -> None:
    """Those in it move along; those that are elsewhere wait in its outbox until they were sent, whatever their fate."""
    run_dir, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run_dir.mkdir()
    (elsewhere / "worker_0").mkdir(parents=True)
    for name in ("trace.json", "worker_0/run_meta_1.pb", "worker_0.log"):
        (elsewhere / name).write_text(name)
    (run_dir / "logs").symlink_to(elsewhere, target_is_directory=True)
    journal = new_journal(run_dir)
    tracker = tracker_of(journal)
    tracker.log_artifact(run_dir / "plan.json", "plots")
    tracker.log_artifact(elsewhere / "trace.json")
    tracker.log_artifact(elsewhere / "worker_0", "profile")
    tracker.log_artifact(run_dir / "logs" / "worker_0.log", "logs")
    tracker.log_artifact(elsewhere / "never written")
    tracker.log_checkpoint(run_dir / ".outbox" / "model.ckpt-5")
    moved = run_dir.rename(tmp_path / "moved")
    (elsewhere / "trace.json").unlink()
    files, store = [], FakeStore()
    store.reads = files
    sent = send(moved / journal.path.name, store)
    assert [(what[0].name, what[1]) for what in sent[:-1]] == [
        ("plan.json", "plots"),
        ("trace.json", None),
        ("worker_0", "profile"),
        ("worker_0.log", "logs"),
    ]
    assert files == ["trace.json", "worker_0/run_meta_1.pb", "worker_0.log"], "they were there when they were sent"
    assert sent[-1] == ("checkpoint", moved / ".outbox" / "model.ckpt-5")
    assert list((moved / ".outbox" / "files").iterdir()) == []


SECRET = "another user's secret"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run's folder; beside it «secret», a folder with a file, and in it an outbox."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text(SECRET)
    (tmp_path / "run" / ".outbox").mkdir(parents=True)
    return tmp_path / "run"


def refusal(journal: Journal, caplog: pytest.LogCaptureFixture) -> str:
    """What is said as a journal is sent, all but one entry."""
    store = FakeStore()
    caplog.clear()
    assert send(journal.path, store) == []
    assert store.names == ["open", "log", "ended"]
    (said,) = [record.message for record in caplog.records]
    return str(said)


@pytest.mark.parametrize(
    "name", ["/etc/hostname", "../secret/key", "../secret", "plots/../../secret/key", "linked", "folder/key", "~/x\0"]
)
def test_a_journal_names_nothing_outside_of_its_folder(
    name: str, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (run_dir / "linked").symlink_to(run_dir.parent / "secret" / "key")
    (run_dir / "folder").symlink_to(run_dir.parent / "secret", target_is_directory=True)
    for kind, fields in (("artifact", {"path": name, "folder": None}), ("event", {"fields": {"saved_model": name}})):
        journal = new_journal(run_dir)
        journal.append("tags", tags={"a": "b"})
        journal.append(kind, **({"event": "model"} if kind == "event" else {}), **fields)
        journal.append_end("finished")
        assert f": {name} is outside the run's folder" in refusal(journal, caplog)
        journal.path.unlink()


@pytest.mark.parametrize(
    "name", [".", "ckpt", ".outbox", ".outbox/a/b", "../secret", ".outbox/../ckpt", ".outbox/link", ".outbox/loop"]
)
def test_only_folders_of_the_outbox_are_deleted(name: str, run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run_dir / "ckpt").mkdir()
    (run_dir / ".outbox" / "a" / "b").mkdir(parents=True)
    (run_dir / ".outbox" / "link").symlink_to(run_dir / "ckpt", target_is_directory=True)
    (run_dir / ".outbox" / "loop").symlink_to("loop")
    journal = new_journal(run_dir)
    journal.append("event", event="checkpoint", fields={"folder": name})
    journal.append("tags", tags={"a": "b"})
    journal.append_end("finished")
    assert f": {name} is not in the outbox" in refusal(journal, caplog)


def test_an_outbox_that_is_a_link_is_none(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run_dir / ".outbox").rmdir()
    (run_dir / ".outbox").symlink_to(run_dir.parent / "secret", target_is_directory=True)
    journal = new_journal(run_dir)
    journal.append("event", event="checkpoint", fields={"folder": ".outbox/model.ckpt-1"})
    assert send(journal.path, FakeStore()) == []
    assert "not in the outbox" in caplog.text


@pytest.mark.parametrize("name", [".outbox/files/runs/b", ".outbox/files/linked/b", ".outbox/files/../b"])
def test_only_what_waits_in_the_outbox_is_deleted(name: str, run_dir: Path) -> None:
    """The file that the journal names is missing and would be inside; the links are in the path to it."""
    runs, files = run_dir.parent / "shared" / "runs", run_dir / ".outbox" / "files"
    runs.mkdir(parents=True)
    (runs / "b").symlink_to(run_dir / "nothing")
    if name.startswith(".outbox/files/runs"):
        files.symlink_to(runs.parent, target_is_directory=True)
    else:
        files.mkdir()
        (files / "linked").symlink_to(runs, target_is_directory=True)
    (run_dir / ".outbox" / "model.ckpt-3").mkdir()
    journal = new_journal(run_dir)
    journal.append("artifact", path=name, folder=None)
    send(journal.path, FakeStore())
    assert (runs / "b").is_symlink()
    assert (run_dir / ".outbox" / "model.ckpt-3").is_dir()


def test_a_folder_is_not_sent_with_what_its_links_lead_to(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run_dir / "plots" / "deep").mkdir(parents=True)
    link = run_dir / "plots" / "deep" / "key"
    link.symlink_to(run_dir.parent / "secret" / "key")
    journal, store = new_journal(run_dir), FakeStore()
    journal.append("artifact", path="plots", folder=None)
    assert send(journal.path, store) == []
    assert f"{link} is outside" in caplog.text
    link.unlink()
    sent_path(journal.path).unlink()
    os.mkfifo(link)
    assert send(journal.path, store) == [], "a pipe would be waited for"
    assert "neither a file nor a folder" in caplog.text
    link.unlink()
    link.symlink_to("../inside")
    (run_dir / "plots" / "inside").write_text("1")
    sent_path(journal.path).unlink()
    assert send(journal.path, store) == [(run_dir / "plots", None)]


def test_an_event_that_is_not_known_calls_nothing(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = new_journal(run_dir)
    journal.append("event", event="store", fields={})
    assert send(journal.path, FakeStore()) == []
    assert "unknown event 'store'" in caplog.text


def test_links_in_a_folder_do_not_choose_what_is_written(run_dir: Path) -> None:
    secret = run_dir.parent / "secret" / "key"
    (run_dir / f".mlflow_run.json.{os.getpid()}").symlink_to(secret)
    (run_dir / "journal.2.jsonl").symlink_to(secret)
    (run_dir / "journal.lock").symlink_to(run_dir.parent / "made")
    journal = new_journal(run_dir)
    journal.append("tags", tags={"a": "b"})
    send(journal.path, FakeStore())
    assert read_run_id(run_dir) is not None
    assert begun(run_dir) == [journal.path]
    with pytest.raises(OSError, match="symbolic links"), writing(run_dir, wait_secs=0.0):
        pass
    assert secret.read_text() == SECRET and not (run_dir.parent / "made").exists()
