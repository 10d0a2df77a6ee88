"""`action=sync`: journals of ended and killed runs, of sweeps, of other users and of archives, and damaged ones."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_runner.errors import ConfigError, TrackingError
from parallax_runner.track.mlflow import runs
from parallax_runner.track.mlflow import sync as syncing
from parallax_runner.track.mlflow.delivery import sent_path
from parallax_runner.track.mlflow.journal import Header, Journal, entries, read_header, writing
from parallax_runner.track.mlflow.killed import KILLED, end_killed
from parallax_runner.track.mlflow.run_id import read_run_id, write_run
from parallax_runner.track.mlflow.store import CopyFailed, EntryRefused
from parallax_runner.track.mlflow.sync import find_run_dirs, sync
from tests.single.track.mlflow.fake_store import FakeStore


def leave_run(folder: Path, *, ended: bool = False, uri: str = "fake:", parent: str | None = None) -> Journal:
    """The journal of a run that has done three steps."""
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal(folder / "journal.jsonl", Header(uri=uri, experiment="e", run_name=None, parent=parent))
    journal.append_start(summary={"status": "failed", "comm": "mpi", "error": None})
    journal.append("metrics", step=3, time_ms=1, metrics={"train/loss": 0.25})
    if ended:
        journal.append_end("finished")
    return journal


def kinds(journal: Journal) -> list[str]:
    return [entry["kind"] for entry, _ in entries(journal.path)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    store = FakeStore()
    monkeypatch.setattr(runs, "open_run", store.open_run)
    return store


def test_a_killed_run_is_interrupted(tmp_path: Path, store: FakeStore) -> None:
    journal = leave_run(tmp_path / "killed")
    (tmp_path / "killed" / "logs").mkdir()
    sync(tmp_path)
    assert kinds(journal)[3:] == ["tags", "artifact", "artifact", "end"]
    assert [what[0].name for name, what in store.calls if name == "artifact"] == ["summary.json", "logs"]
    assert [what for name, what in store.calls if name == "ended"] == ["interrupted"]
    summary = json.loads((tmp_path / "killed" / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert summary["error"] == KILLED
    assert (summary["comm"], summary["steps"], summary["loss_last"]) == ("mpi", 3, 0.25)
    assert summary["mlflow_run_id"] is not None
    sync(tmp_path)
    assert store.names.count("ended") == 1


def test_logs_that_a_killed_run_kept_elsewhere_are_not_sent(
    tmp_path: Path, store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "parallax_runner")  # an earlier test may have left another
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "worker_0.log").write_text("the last words")
    leave_run(tmp_path / "killed")
    (tmp_path / "killed" / "logs").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    sync(tmp_path / "killed")
    assert [what[0].name for name, what in store.calls if name == "artifact"] == ["summary.json"]
    assert f"{tmp_path / 'killed' / 'logs'} of a killed run is not sent, because it is a link" in caplog.text


def test_a_summary_that_the_run_has_written_stays(tmp_path: Path, store: FakeStore) -> None:
    leave_run(tmp_path / "killed")
    (tmp_path / "killed" / "summary.json").write_text('{"status": "finished", "mlflow_run_id": "x"}')
    sync(tmp_path)
    assert json.loads((tmp_path / "killed" / "summary.json").read_text())["status"] == "finished"


def test_a_run_of_another_host_is_not_ended(tmp_path: Path, store: FakeStore) -> None:
    """Only that host can tell whether its driver is alive."""
    journal = leave_run(tmp_path)
    text = journal.path.read_text().replace(f'"host": "{os.uname().nodename}"', '"host": "another"')
    journal.path.write_text(text)
    sync(tmp_path)
    assert store.names == ["open", "running", "log"]


def test_a_file_that_cannot_be_copied_keeps_no_other_run_waiting(
    tmp_path: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parallax_runner.track.mlflow.delivery.COPY_PAUSE_SECS", 0.0)
    store.copy_failures = [CopyFailed("full"), CopyFailed("full"), EntryRefused("tried often enough")]
    for name in ("a", "b"):
        leave_run(tmp_path / name)
    sync(tmp_path)
    assert [what[0].parent.name for name, what in store.calls if name == "artifact"] == ["b"]
    assert store.names.count("ended") == 2


@pytest.mark.parametrize("text", ["", '{"kind": "header", "form'])
def test_a_journal_without_its_first_line_is_none(
    tmp_path: Path, store: FakeStore, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    broken, both = tmp_path / "broken", tmp_path / "both"
    broken.mkdir()
    leave_run(both)
    for path in (broken / "journal.jsonl", both / "journal.2.jsonl"):
        path.write_text(text)
    Journal(broken / "journal.jsonl").append_end("finished")
    sync(tmp_path)
    assert store.calls[-1] == ("ended", "interrupted")
    assert store.names.count("open") == 1
    assert read_run_id(both) is not None
    assert "has no valid header" in caplog.text


def test_a_run_that_is_going_on_is_not_ended(tmp_path: Path) -> None:
    journal = leave_run(tmp_path)
    with writing(tmp_path, wait_secs=0.0), pytest.raises(BlockingIOError):
        end_killed(tmp_path)
    assert "end" not in kinds(journal)


def test_sync_sends_a_sweep_and_its_jobs(tmp_path: Path, store: FakeStore, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("b", "a"):
        leave_run(tmp_path / name, ended=True, parent=str(tmp_path))
    leave_run(tmp_path, ended=True)
    assert find_run_dirs(tmp_path) == [tmp_path, tmp_path / "a", tmp_path / "b"]
    sync(tmp_path)
    assert store.names.count("ended") == 3
    assert capsys.readouterr().out.count("4 entries sent") == 3
    sync(tmp_path)
    assert store.names.count("ended") == 3
    assert capsys.readouterr().out.count("nothing to send") == 3


def test_sync_ends_a_killed_run(tmp_path: Path, store: FakeStore) -> None:
    leave_run(tmp_path)
    sync(tmp_path)
    assert store.calls[-1] == ("ended", "interrupted")


def test_sync_of_a_living_run_is_refused(tmp_path: Path, store: FakeStore) -> None:
    leave_run(tmp_path)
    with writing(tmp_path, wait_secs=0.0), pytest.raises(TrackingError, match="still active"):
        sync(tmp_path)
    assert store.calls == []


def test_sync_says_what_waits_for_a_store_that_is_down(tmp_path: Path, store: FakeStore) -> None:
    leave_run(tmp_path, ended=True)
    store.up = False
    with pytest.raises(TrackingError, match=r"4 entries were not sent, because MLflow is unreachable: down"):
        sync(tmp_path)


def test_sync_of_a_folder_without_a_journal_is_a_mistake(tmp_path: Path, store: FakeStore) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match=r"run_dir=.*no journal\.jsonl"):
            sync(path)


def test_sync_loads_neither_tensorflow_nor_a_second_too_early_mlflow() -> None:
    code = f"import sys, {syncing.__name__}; print([n for n in ('mlflow', 'tensorflow') if n in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


NOBODY = 65534


def test_another_users_journal_is_not_sent(tmp_path: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither to the store that it names, nor to one that this user names."""
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's file")
    journal = leave_run(tmp_path / "run")
    for path in (journal.path, tmp_path / "run"):
        os.chown(path, NOBODY, NOBODY)
    before = journal.path.read_bytes()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mine")
    for uri in (None, "http://mine"):
        with pytest.raises(TrackingError, match=r"belongs to another user.*copy the run directory, look at the copy"):
            sync(tmp_path, uri)
    assert (store.calls, journal.path.read_bytes()) == ([], before)


def test_a_journal_is_a_job_of_the_sweep_in_whose_folder_it_is(tmp_path: Path, store: FakeStore) -> None:
    """An unpacked folder may name any other one."""
    leave_run(tmp_path / "mine", ended=True)
    write_run(tmp_path / "mine", run_id="my sweep", uri="fake:", experiment_id="1")
    leave_run(tmp_path / "unpacked", ended=True, parent=str(tmp_path / "mine"))
    leave_run(tmp_path / "mine" / "job", ended=True, parent=str(tmp_path / "mine"))
    sync(tmp_path / "unpacked")
    sync(tmp_path / "mine" / "job")
    assert store.parents == [None, "my sweep"]


def test_sync_sends_to_the_store_that_it_is_given(tmp_path: Path, store: FakeStore) -> None:
    leave_run(tmp_path, ended=True)
    sync(tmp_path)
    sync(tmp_path, "fake:")
    assert store.names.count("open") == 1, "that is where it is"
    sync(tmp_path, "http://other")
    assert [header.uri for header in store.headers] == ["fake:", "http://other"]
    assert [known for call, known in store.calls if call == "open"] == [None, None]
    assert store.names.count("ended") == 2


def test_a_password_that_is_not_in_the_journal_is_in_the_environment(
    tmp_path: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = "postgresql://me:s3cret@db/mlflow"
    journal = leave_run(tmp_path, ended=True, uri=uri)
    assert read_header(journal.path).uri == "postgresql://me:***@db/mlflow"
    for wrong in ("", "postgresql://me:s3cret@another/mlflow"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", wrong)
        with pytest.raises(TrackingError, match=r"me:\*\*\*@db/mlflow needs a password: set MLFLOW_TRACKING_URI"):
            sync(tmp_path)
    assert store.calls == []
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    sync(tmp_path)
    assert [header.uri for header in store.headers] == [uri]
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    sync(tmp_path)
    assert len(store.headers) == 1, "nothing to send needs no password"
    files = list(tmp_path.iterdir())
    assert journal.path in files
    assert not any(b"s3cret" in path.read_bytes() for path in files)


DEEP = "[" * 100_000


def damage(tmp_path: Path) -> dict[str, Path]:
    """Folders of killed runs in which something is damaged, by what it is."""
    folders = {name: tmp_path / name for name in ("header", "position", "run_id", "summary", "fifo", "lock", "ok")}
    for folder in folders.values():
        leave_run(folder)
    (folders["header"] / "journal.jsonl").write_text('{"kind": "header", "format": 1, "experiment": "e"}\n')
    sent_path(folders["position"] / "journal.jsonl").write_text(DEEP)
    (folders["run_id"] / "mlflow_run.json").write_text(DEEP)
    (folders["summary"] / "summary.json").write_text(DEEP)
    (folders["fifo"] / "journal.jsonl").unlink()
    os.mkfifo(folders["fifo"] / "journal.jsonl")
    (folders["lock"] / "journal.lock").unlink(missing_ok=True)
    os.mkfifo(folders["lock"] / "journal.lock")
    for name, file in (("position", "mlflow_run.json"), ("run_id", "journal.sent"), ("ok", "summary.json")):
        os.mkfifo(folders[name] / file)
    return folders


@pytest.mark.timeout(120)
def test_damaged_folders_keep_no_other_from_being_sent(tmp_path: Path, store: FakeStore) -> None:
    damage(tmp_path)
    with pytest.raises(
        TrackingError, match=r"fifo: its journal cannot be sent.*it is a FIFO, not a regular file.*and 1 more"
    ):
        sync(tmp_path)
    assert [what for name, what in store.calls if name == "ended"] == ["interrupted"] * 4


def test_a_journal_of_nonsense_is_told_in_one_line(tmp_path: Path, store: FakeStore) -> None:
    for number, (kind, fields) in enumerate(
        [("metrics", {}), ("params", {"params": 3}), ("artifact", {}), ("event", {"event": "model", "fields": []})]
    ):
        leave_run(tmp_path / str(number), ended=True).append(kind, **fields)
    with pytest.raises(TrackingError, match=r"its journal cannot be sent.*and 3 more"):
        sync(tmp_path)
