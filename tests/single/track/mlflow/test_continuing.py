"""Which MLflow run a job goes on with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parallax_runner.track.mlflow.continuing import Continuation, continuation
from parallax_runner.track.mlflow.delivery import Delivery
from parallax_runner.track.mlflow.journal import Header, Journal, read_header
from parallax_runner.track.mlflow.run_id import write_run
from parallax_runner.track.tracker import Start
from tests.single.track.mlflow.fake_store import FakeStore

URI = "sqlite:////tmp/x.db"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A used run directory, whose MLflow run is `own`."""
    return used(tmp_path / "own")


def used(folder: Path, run_id: str | None = "own", uri: str = URI) -> Path:
    (folder / "ckpt").mkdir(parents=True)
    journal = Journal(folder / "journal.jsonl", Header(uri=uri, experiment="e", run_name=None))
    store = FakeStore()
    store.run_id = run_id
    with Delivery(journal.path, store.open_run, read_header(journal.path)) as delivery:
        delivery.send_all()
    (folder / "mlflow_run.json").unlink()
    if run_id is not None:
        write_run(folder, run_id=run_id, uri=uri, experiment_id="1")
    return folder


def checkpoint(folder: Path) -> Path:
    return folder / "ckpt" / "model.ckpt-20"


def test_from_nothing_a_new_run(own: Path) -> None:
    assert continuation(own, URI, None) == Continuation()


@pytest.mark.parametrize("named", ["own", None])
def test_from_its_own_checkpoint_its_own_run(own: Path, named: str | None) -> None:
    assert continuation(own, URI, Start(checkpoint(own), named)) == Continuation(goes_on=True)


def test_a_checkpoint_kept_elsewhere_still_names_the_run(own: Path, tmp_path: Path) -> None:
    start = Start(tmp_path / "shared" / "model.ckpt-20", "own")
    assert continuation(own, URI, start) == Continuation(goes_on=True)


def test_a_journal_that_was_never_begun_does_not_go_on(own: Path) -> None:
    (own / "journal.jsonl").write_text("")
    assert continuation(own, URI, Start(checkpoint(own), "own")) == Continuation(resumed_from="own")


def test_in_another_store_a_new_run(own: Path) -> None:
    start = Start(checkpoint(own), "own")
    assert continuation(own, "http://elsewhere", start) == Continuation(resumed_from="own")


@pytest.mark.parametrize("named", ["theirs", None])
def test_from_another_folder_a_new_run_that_names_that_one(own: Path, tmp_path: Path, named: str | None) -> None:
    source = used(tmp_path / "source", "theirs")
    for folder in (own, tmp_path / "new"):
        found = continuation(folder, URI, Start(checkpoint(source), named))
        assert found == Continuation(resumed_from="theirs")


def test_the_journal_of_another_user_does_not_go_on(own: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's file")
    os.chown(own / "journal.jsonl", 65534, 65534)
    assert continuation(own, URI, Start(checkpoint(own), "own")) == Continuation(resumed_from="own")


def test_from_an_untracked_run_a_new_run_that_names_the_checkpoint(tmp_path: Path) -> None:
    prefix = checkpoint(tmp_path / "untracked")
    assert continuation(tmp_path / "new", URI, Start(prefix, None)) == Continuation(resumed_from=str(prefix))
