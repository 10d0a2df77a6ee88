"""What MLflow makes of a journal that is sent more than once, and of one that would decide what it must not."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from parallax_runner.track.mlflow import runs
from parallax_runner.track.mlflow.delivery import Delivery, sent_path
from parallax_runner.track.mlflow.journal import Header, Journal, read_header
from parallax_runner.track.mlflow.runs import open_run
from parallax_runner.track.mlflow.store import CopyFailed, EntryRefused, Gone, Opened, OutOfReach, Point, Refused


def header(uri: str, **fields: Any) -> Header:
    return Header(uri=uri, experiment="exp", run_name=None, **fields)


def steps(uri: str, run_id: str, key: str = "train/loss") -> list[int]:
    return [metric.step for metric in MlflowClient(tracking_uri=uri).get_metric_history(run_id, key)]


def whole_run(folder: Path, uri: str) -> Journal:
    """Every kind of entry, and numbers of every kind."""
    (folder / "plan.json").write_text("{}")
    journal = Journal(folder / "journal.jsonl", header(uri))
    journal.append_start(summary={})
    journal.append("params", params={"a": "1", "b": "2"})
    for step in range(1, 51):
        journal.append("metrics", step=step, time_ms=step, metrics={"train/loss": 1 / step, "odd": "nan", "big": "inf"})
    journal.append("tags", tags={"t": "1"})
    journal.append("artifact", path=str(folder / "plan.json"), folder=None)
    journal.append("metrics", step=51, time_ms=51, metrics={"train/loss": 0.5})
    journal.append_end("finished")
    return journal


def check_whole_run(uri: str) -> None:
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("exp").experiment_id])
    assert run.info.status == "FINISHED"
    assert steps(uri, run.info.run_id) == list(range(1, 52))
    assert steps(uri, run.info.run_id, "odd") == steps(uri, run.info.run_id, "big") == list(range(1, 51))
    assert run.data.params == {"a": "1", "b": "2"}
    assert run.data.tags["t"] == "1"
    assert [entry.path for entry in client.list_artifacts(run.info.run_id)] == ["plan.json"]


def test_a_process_killed_between_sending_and_noting_it_doubles_nothing(uri: str, tmp_path: Path) -> None:
    """Each process gets one acknowledgement further than the one before, and is killed before it notes it."""
    journal = whole_run(tmp_path, uri)
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from parallax_runner.track.mlflow import delivery, runs, run_id\n"
        "left, note = [int(sys.argv[2])], run_id.replace_json\n"
        "def replace(path, fields):\n"
        "    if path.name == 'journal.sent':\n"
        "        left[0] -= 1\n"
        "        if left[0] == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    note(path, fields)\n"
        "run_id.replace_json = replace\n"
        "from parallax_runner.track.mlflow.journal import read_header\n"
        "path = Path(sys.argv[1])\n"
        "with delivery.Delivery(path, runs.open_run, read_header(path)) as one: one.send_all()\n"
    )
    # The first note is that of the run itself: killed there, the run is found again by its journal's tag. Each later
    # process opens the run (one note), sends one batch, and dies.
    for notes in (1, 2, 3, 4):
        ended = subprocess.run([sys.executable, "-c", code, str(journal.path), str(notes)], check=False)
        assert ended.returncode == -signal.SIGKILL
    with Delivery(journal.path, open_run, read_header(journal.path)) as delivery:
        delivery.send_all()
    check_whole_run(uri)


def test_everything_may_be_sent_twice(uri: str, tmp_path: Path) -> None:
    journal = whole_run(tmp_path, uri)
    for _ in range(2):
        with Delivery(journal.path, open_run, read_header(journal.path)) as delivery:
            delivery.send_all()
        sent_path(journal.path).unlink()
    check_whole_run(uri)


RESERVED = {
    "mlflow.parentRunId": "mine",
    "MLFLOW.parentRunId": "mine",
    " mlflow.parentRunId": "mine",
    "mlflow.user": "root",
    "mlflow.runName": "evil",
    "mlflow.project.env": "x",
    "mlflow.loggedArtifacts": "[]",
    "parallax.journal": "a" * 32,
    "parallax.changed_params": "{}",
}


def test_the_tags_of_a_journal_decide_nothing(uri: str) -> None:
    """Neither those of its first line nor later ones: to whom the run belongs, of what it is a part, who writes it."""
    client, given = MlflowClient(tracking_uri=uri), header(uri, tags={**RESERVED, "team": "x"})
    run = open_run(given, None, None)
    run.log([], {}, {**RESERVED, "mlflow.note.content": "told", "stage": "two"})
    tags = client.get_run(run.opened.run_id).data.tags
    assert tags["parallax.journal"] == given.journal_id
    assert tags["mlflow.user"] == getpass.getuser()
    assert (tags["team"], tags["stage"], tags["mlflow.note.content"]) == ("x", "two", "told")
    told = set(tags) - {"parallax.journal", "mlflow.user", "team", "stage", "mlflow.note.content", "mlflow.runName"}
    assert told == set()
    assert tags["mlflow.runName"] != "evil"
    child = open_run(header(uri, tags=RESERVED), None, run.opened.run_id)
    assert client.get_run(child.opened.run_id).data.tags["mlflow.parentRunId"] == run.opened.run_id


def test_a_file_that_names_another_run_opens_none(uri: str) -> None:
    """The position of a journal may come from elsewhere, as the journal may."""
    client = MlflowClient(tracking_uri=uri)
    theirs = open_run(header(uri), None, None).opened
    untagged = client.create_run(theirs.experiment_id).info.run_id
    for run_id in (theirs.run_id, untagged):
        with pytest.raises(Refused, match="belongs to another journal"):
            open_run(header(uri), Opened(run_id, theirs.experiment_id), None)


def test_a_child_names_its_parent(uri: str) -> None:
    parent = open_run(header(uri), None, None)
    child = open_run(header(uri), None, parent.opened.run_id)
    tags = MlflowClient(tracking_uri=uri).get_run(child.opened.run_id).data.tags
    assert tags["mlflow.parentRunId"] == parent.opened.run_id


def test_many_changed_params_fit_a_tag(uri: str) -> None:
    run = open_run(header(uri), None, None)
    names = [f"p{number}" for number in range(90)]
    run.log([], dict.fromkeys(names, "1"), {})
    run.log([], dict.fromkeys(names, "v" * 6000), {})
    tag = MlflowClient(tracking_uri=uri).get_run(run.opened.run_id).data.tags["parallax.changed_params"]
    assert len(tag) <= 8000
    assert '"p89": "vvvv' in tag


def test_a_run_deleted_meanwhile_is_refused_and_one_bad_entry_is_not(uri: str) -> None:
    run = open_run(header(uri), None, None)
    with pytest.raises(EntryRefused):
        run.log([Point("no[key]", 1.0, 1, 1)], {}, {})
    MlflowClient(tracking_uri=uri).delete_run(run.opened.run_id)
    with pytest.raises(Gone, match="deleted"):
        run.log([Point("key", 1.0, 1, 1)], {}, {})
    with pytest.raises(Gone, match="deleted"):
        open_run(header(uri), run.opened, None)
    with pytest.raises(Gone, match="not found"):
        open_run(header(uri), Opened("0" * 32, "1"), None)


def test_a_deleted_experiment_is_refused(uri: str) -> None:
    run = open_run(header(uri), None, None)
    MlflowClient(tracking_uri=uri).delete_experiment(run.opened.experiment_id)
    with pytest.raises(Gone, match=r"tracking\.experiment=exp was deleted"):
        open_run(header(uri), None, None)


def test_a_server_that_is_not_there_is_out_of_reach_and_said_in_few_words() -> None:
    with pytest.raises(OutOfReach, match=r"^tracking\.uri=http://127\.0\.0\.1:9: Connection refused$"):
        open_run(header("http://127.0.0.1:9"), None, None)


def test_a_missing_driver_is_refused() -> None:
    with pytest.raises(Refused, match=r"tracking\.uri=mssql") as refused:
        open_run(header("mssql+pyodbc://user@127.0.0.1/db"), None, None)
    assert not isinstance(refused.value, Gone)


def test_a_file_that_never_goes_holds_up_nothing_for_ever(uri: str, tmp_path: Path) -> None:
    """A folder that cannot be written into, on the store's side."""
    run = open_run(header(uri), None, None)
    (tmp_path / "mlartifacts").write_text("a file where a folder should be")
    source = tmp_path / "plan.json"
    source.write_text("{}")
    for _ in range(runs.MAX_COPY_FAILURES - 1):
        with pytest.raises(CopyFailed):
            run.log_artifact(source, None)
    with pytest.raises(EntryRefused, match="4 attempts failed"):
        run.log_artifact(source, None)


def test_what_the_user_has_set_for_mlflow_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    runs.prepare_environment()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"


# Errors of a database that a later attempt would meet again.


def no_database(path: Path) -> None:
    path.write_bytes(b"\x00\xff" * 3000)


def newer_schema(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as store, store:
        store.execute("UPDATE alembic_version SET version_num = '1234'")


@pytest.mark.parametrize(
    ("damage", "told"),
    [(no_database, "file is not a database"), (newer_schema, r"another version of MLflow wrote this database")],
)
def test_a_database_that_no_retry_makes_usable_is_not_called_unreachable(
    uri: str, damage: Callable[[Path], None], told: str
) -> None:
    damage(Path(uri.removeprefix("sqlite:///")))
    with pytest.raises(Refused, match=told):
        open_run(header(uri), None, None)
