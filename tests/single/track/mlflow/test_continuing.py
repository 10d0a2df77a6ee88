"""Which MLflow run a job goes on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallax_runner.track.mlflow.continuing import Continuation, continuation
from parallax_runner.track.mlflow.delivery import Delivery, writer_of
from parallax_runner.track.mlflow.journal import Header, Journal, read_header, writing
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


def writer(folder: Path) -> str | None:
    return writer_of(folder, "theirs")


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


def test_from_another_folder_that_folders_run(tmp_path: Path) -> None:
    source = used(tmp_path / "source", "theirs")
    for named in ("theirs", None):
        found = continuation(tmp_path / "new", URI, Start(checkpoint(source), named))
        assert found == Continuation(continues="theirs", continues_journal=writer(source))


def test_a_used_folder_that_starts_from_another_one(own: Path, tmp_path: Path) -> None:
    source = used(tmp_path / "source", "theirs")
    found = continuation(own, URI, Start(checkpoint(source), "theirs"))
    assert found == Continuation(continues="theirs", continues_journal=writer(source))
    assert writer(source) == read_header(source / "journal.jsonl").journal_id


def test_from_a_run_of_another_store_a_new_run(tmp_path: Path) -> None:
    source = used(tmp_path / "source", "theirs", uri="http://elsewhere")
    found = continuation(tmp_path / "new", URI, Start(checkpoint(source), "theirs"))
    assert found == Continuation(resumed_from="theirs")


def test_from_a_run_that_still_goes_on_a_new_run(tmp_path: Path) -> None:
    source = used(tmp_path / "source", "theirs")
    with writing(source, wait_secs=0.0):
        found = continuation(tmp_path / "new", URI, Start(checkpoint(source), "theirs"))
    assert found == Continuation(resumed_from="theirs")


def test_from_an_untracked_run_a_new_run_that_names_the_checkpoint(tmp_path: Path) -> None:
    prefix = checkpoint(tmp_path / "untracked")
    assert continuation(tmp_path / "new", URI, Start(prefix, None)) == Continuation(resumed_from=str(prefix))


def test_jobs_of_a_sweep_do_not_share_the_run_that_they_start_from(own: Path, tmp_path: Path) -> None:
    start = Start(checkpoint(own), "own")
    found = [continuation(tmp_path / name, URI, start, in_sweep=True) for name in ("a", "b")]
    assert found == [Continuation(resumed_from="own")] * 2
    assert continuation(own, URI, start, in_sweep=True) == Continuation(goes_on=True)


def test_from_a_run_that_has_more_to_send_a_new_run(tmp_path: Path) -> None:
    source = used(tmp_path / "source", "theirs")
    Journal(source / "journal.jsonl").append_end("failed")
    found = continuation(tmp_path / "new", URI, Start(checkpoint(source), "theirs"))
    assert found == Continuation(resumed_from="theirs")
