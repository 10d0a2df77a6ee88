"""Runs whose driver was killed: what the next start makes of them."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_runner.errors import ConfigError, TrackingError
from parallax_runner.track.mlflow import open_runs, runs
from parallax_runner.track.mlflow import sync as syncing
from parallax_runner.track.mlflow.delivery import sent_path
from parallax_runner.track.mlflow.journal import Header, Journal, entries, read_header, writing
from parallax_runner.track.mlflow.run_id import read_run_id, replace_json
from parallax_runner.track.mlflow.settle import KILLED, settle, settle_others
from parallax_runner.track.mlflow.store import CopyFailed, EntryRefused, Gone, OutOfReach, Refused
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


def note(folder: Path, state: Path, *, host: str | None = None, alive: bool = False) -> None:
    """Notes an open run, of a process that is gone unless `alive`."""
    open_runs.register(folder)
    if not alive or host is not None:
        path = state / open_runs._path(folder).name
        fields = json.loads(path.read_text())
        fields |= {} if alive else {"process_started_secs": 1.0}
        path.write_text(json.dumps(fields | ({} if host is None else {"host": host})))


def kinds(journal: Journal) -> list[str]:
    return [entry["kind"] for entry, _ in entries(journal.path)]


def test_a_killed_run_is_interrupted(tmp_path: Path, state: Path) -> None:
    journal, store = leave_run(tmp_path / "killed"), FakeStore()
    (tmp_path / "killed" / "logs").mkdir()
    note(tmp_path / "killed", state)
    settle_others(tmp_path / "own", store.open_run)
    assert kinds(journal)[3:] == ["tags", "artifact", "artifact", "end"]
    assert [what[0].name for name, what in store.calls if name == "artifact"] == ["summary.json", "logs"]
    assert [what for name, what in store.calls if name == "ended"] == ["interrupted"]
    summary = json.loads((tmp_path / "killed" / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert summary["error"] == KILLED
    assert (summary["comm"], summary["steps"], summary["loss_last"]) == ("mpi", 3, 0.25)
    assert summary["mlflow_run_id"] is not None
    assert open_runs.listed() == []
    settle_others(tmp_path / "own", store.open_run)
    assert store.names.count("ended") == 1


def test_logs_that_a_killed_run_kept_elsewhere_are_sent_if_it_was_this_users(
    tmp_path: Path, state: Path, store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "parallax_runner")  # an earlier test may have left another
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "worker_0.log").write_text("the last words")
    for name in ("killed", "unpacked"):
        leave_run(tmp_path / name)
        (tmp_path / name / "logs").symlink_to(elsewhere, target_is_directory=True)
    note(tmp_path / "killed", state)
    settle_others(tmp_path / "own", store.open_run)
    assert [what[0].name for name, what in store.calls if name == "artifact"] == ["summary.json", "logs"]
    assert store.reads[-1] == "the last words"
    assert list((tmp_path / "killed" / ".outbox" / "files").iterdir()) == []
    assert caplog.text == ""
    sync(tmp_path / "unpacked")
    assert store.reads.count("the last words") == 1
    assert f"{tmp_path / 'unpacked' / 'logs'} of a killed run is not sent: the link leads outside" in caplog.text
    assert (elsewhere / "worker_0.log").exists()


def test_a_summary_that_the_run_has_written_stays(tmp_path: Path, state: Path) -> None:
    leave_run(tmp_path / "killed")
    (tmp_path / "killed" / "summary.json").write_text('{"status": "finished", "mlflow_run_id": "x"}')
    note(tmp_path / "killed", state)
    settle_others(tmp_path / "own", FakeStore().open_run)
    assert json.loads((tmp_path / "killed" / "summary.json").read_text())["status"] == "finished"


def test_living_runs_and_those_of_other_hosts_are_left_alone(tmp_path: Path, state: Path) -> None:
    alive, elsewhere, store = leave_run(tmp_path / "alive"), leave_run(tmp_path / "elsewhere"), FakeStore()
    note(tmp_path / "elsewhere", state, host="another")
    note(tmp_path / "alive", state, alive=True)
    own = leave_run(tmp_path / "own")
    note(tmp_path / "own", state)
    settle_others(tmp_path / "own", store.open_run)
    for journal in (alive, elsewhere, own):
        assert "end" not in kinds(journal)
    assert store.calls == []
    assert len(open_runs.listed()) == 3


def test_what_an_ended_run_of_this_very_process_left_is_sent(tmp_path: Path, state: Path) -> None:
    """In a sweep all jobs may be of one process."""
    leave_run(tmp_path / "job0", ended=True)
    note(tmp_path / "job0", state, alive=True)
    store = FakeStore()
    settle_others(tmp_path / "job1", store.open_run)
    assert [what for name, what in store.calls if name == "ended"] == ["finished"]
    assert open_runs.listed() == []


def test_a_folder_that_is_gone_is_forgotten(tmp_path: Path, state: Path) -> None:
    note(tmp_path / "deleted", state)
    (state / "broken.json").write_text("{half")
    settle_others(tmp_path / "own", FakeStore().open_run)
    assert open_runs.listed() == []


def test_a_store_out_of_reach_is_asked_once(tmp_path: Path, state: Path) -> None:
    asked: list[str] = []

    def open_run(header: Header, *_: object) -> None:
        asked.append(header.uri)
        raise OutOfReach("down")

    for number in range(3):
        leave_run(tmp_path / str(number), uri="a:" if number < 2 else "b:")
        note(tmp_path / str(number), state)
    settle_others(tmp_path / "own", open_run)  # type: ignore[arg-type]
    assert sorted(asked) == ["a:", "b:"]
    assert len(open_runs.listed()) == 3
    # They are settled all the same: what MLflow is told some day is true.
    assert json.loads((tmp_path / "1" / "summary.json").read_text())["status"] == "interrupted"


@pytest.mark.parametrize(
    ("error", "stays"), [(Gone("deleted"), False), (Refused("no such user"), True), (PermissionError("disk"), True)]
)
def test_only_a_run_that_was_deleted_is_forgotten(tmp_path: Path, state: Path, error: Exception, stays: bool) -> None:
    store = FakeStore()
    store.error = error
    leave_run(tmp_path / "run")
    note(tmp_path / "run", state)
    settle_others(tmp_path / "own", store.open_run)
    assert bool(open_runs.listed()) == stays
    store.error = None
    settle_others(tmp_path / "own", store.open_run)
    assert ("ended" in store.names) == stays


def test_a_file_that_cannot_be_copied_keeps_no_other_run_waiting(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parallax_runner.track.mlflow.delivery.COPY_PAUSE_SECS", 0.0)
    store = FakeStore()
    store.copy_failures = [CopyFailed("full"), CopyFailed("full"), EntryRefused("tried often enough")]
    for name in ("a", "b"):
        leave_run(tmp_path / name)
        note(tmp_path / name, state)
    settle_others(tmp_path / "own", store.open_run)
    assert [what[0].parent.name for name, what in store.calls if name == "artifact"] == ["b"]
    assert store.names.count("ended") == 2
    assert open_runs.listed() == []


@pytest.mark.parametrize("text", ["", '{"kind": "header", "form'])
def test_a_journal_without_its_first_line_is_none(
    tmp_path: Path, state: Path, store: FakeStore, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    broken, both = tmp_path / "broken", tmp_path / "both"
    broken.mkdir()
    leave_run(both)
    for path in (broken / "journal.jsonl", both / "journal.2.jsonl"):
        path.write_text(text)
    Journal(broken / "journal.jsonl").append_end("finished")
    for folder in (broken, both):
        note(folder, state)
    sync(tmp_path)
    assert store.calls[-1] == ("ended", "interrupted")
    assert store.names.count("open") == 1
    assert read_run_id(both) is not None
    assert "has no valid header" in caplog.text
    settle_others(tmp_path / "own", store.open_run)
    assert open_runs.listed() == []


def test_the_run_of_a_sweep_comes_before_those_of_its_jobs(tmp_path: Path, state: Path) -> None:
    store = FakeStore()
    leave_run(tmp_path / "sweep" / "a", parent=str(tmp_path / "sweep"))
    leave_run(tmp_path / "sweep")
    for folder in (tmp_path / "sweep" / "a", tmp_path / "sweep"):
        note(folder, state)
    settle_others(tmp_path / "own", store.open_run)
    assert store.parents[0] is None
    assert store.parents[1] is not None
    assert open_runs.listed() == []


def test_a_run_that_is_going_on_is_not_settled(tmp_path: Path) -> None:
    journal = leave_run(tmp_path)
    with writing(tmp_path, wait_secs=0.0), pytest.raises(BlockingIOError):
        settle(tmp_path)
    assert "end" not in kinds(journal)


def test_a_process_number_that_another_process_has_now_is_no_sign_of_life(tmp_path: Path, state: Path) -> None:
    note(tmp_path, state)
    (entry,) = open_runs.listed()
    assert not entry.is_alive
    open_runs.register(tmp_path)
    (entry,) = open_runs.listed()
    assert entry.is_alive
    assert entry.is_here


def test_a_state_folder_that_cannot_be_made_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    open_runs.register(tmp_path)
    open_runs.forget(tmp_path)
    assert open_runs.listed() == []


# action=sync


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    store = FakeStore()
    monkeypatch.setattr(runs, "open_run", store.open_run)
    return store


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


def test_sync_settles_a_killed_run(tmp_path: Path, store: FakeStore) -> None:
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


@pytest.fixture
def foreign(tmp_path: Path) -> Journal:
    """The journal of another user's run, who would like it to go on with a run of this one's in a store of this one's,
    and says that it is there already."""
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's file")
    journal = leave_run(tmp_path / "run", ended=True, parent=str(tmp_path))
    header = dataclasses.replace(read_header(journal.path), continues="victim", uri="http://theirs")
    text = journal.path.read_text().splitlines()[1:]
    journal.path.unlink()
    Journal(journal.path, header)
    with open(journal.path, "a") as file:
        file.write("\n".join(text) + "\n")
    fields = {"journal_id": header.journal_id, "offset": 0, "run_id": "victim", "experiment_id": "1", "floors": {}}
    replace_json(sent_path(journal.path), fields)
    for path in (journal.path, sent_path(journal.path), tmp_path / "run"):
        os.chown(path, NOBODY, NOBODY)
    return journal


def test_another_users_journal_does_not_choose_where_it_goes(
    foreign: Journal, tmp_path: Path, state: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = foreign.path.read_bytes()
    with pytest.raises(TrackingError, match=r"belongs to another user.*Add tracking\.uri="):
        sync(tmp_path)
    note(tmp_path / "run", state)
    settle_others(tmp_path / "own", store.open_run)
    assert (store.calls, foreign.path.read_bytes()) == ([], before)

    sync(tmp_path, "http://mine")
    (header,) = store.headers
    assert header.uri == "http://mine"
    assert (header.parent, header.continues, header.continues_journal) == (None, None, None)
    assert header.journal_id != read_header(foreign.path).journal_id, "not the tag of a run that is there already"
    assert store.calls[0] == ("open", None), "nor the run that the folder names"
    assert store.names[1:] == ["running", "log", "ended"]

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mine")
    sync(tmp_path)
    assert len(store.headers) == 1, "what this user has sent is known by this user's own note"


def test_the_environment_chooses_for_another_users_journal(
    foreign: Journal, tmp_path: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://u:s3cret@mine")
    sync(tmp_path)
    assert [header.uri for header in store.headers] == ["http://u:s3cret@mine"]
    files = list(foreign.path.parent.iterdir())
    assert foreign.path in files
    assert not any(b"s3cret" in path.read_bytes() for path in files)


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


@pytest.mark.timeout(120)
def test_a_start_passes_over_damaged_folders(
    tmp_path: Path, state: Path, store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    folders = damage(tmp_path)
    for folder in folders.values():
        note(folder, state)
    settle_others(tmp_path / "own", store.open_run)
    assert [what for name, what in store.calls if name == "ended"] == ["interrupted"] * 4
    assert sorted(Path(entry.run_dir) for entry in open_runs.listed()) == [folders["fifo"], folders["lock"]]
    assert caplog.text.count("cannot be sent now: OSError") == 2


def test_a_journal_of_nonsense_is_told_in_one_line(tmp_path: Path, store: FakeStore) -> None:
    for number, (kind, fields) in enumerate(
        [("metrics", {}), ("params", {"params": 3}), ("artifact", {}), ("event", {"event": "model", "fields": []})]
    ):
        leave_run(tmp_path / str(number), ended=True).append(kind, **fields)
    with pytest.raises(TrackingError, match=r"its journal cannot be sent.*and 3 more"):
        sync(tmp_path)
