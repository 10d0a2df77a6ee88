"""Tags and parameters that MLflow limits, and errors that a retry cannot resolve."""

from __future__ import annotations

import json

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, PERMISSION_DENIED, RESOURCE_DOES_NOT_EXIST

from parallax_runner.track.mlflow.changed_params import fitting_json, parse_changed
from parallax_runner.track.mlflow.errors import MAX_MESSAGE_CHARS, is_of_what_is_gone, is_permanent, one_line
from parallax_runner.track.mlflow.tags import JOURNAL_TAG, MAX_TAG_CHARS, PARENT_TAG, USER_TAG, of_journal, of_new_run


@pytest.mark.parametrize("key", [JOURNAL_TAG, JOURNAL_TAG.upper(), PARENT_TAG, " mlflow.runName", USER_TAG])
def test_a_journal_does_not_decide_whose_run_it_is(key: str) -> None:
    assert of_journal({key: "other", "mlflow.source.name": "train.py", "note": "n" * (MAX_TAG_CHARS + 1)}) == {
        "mlflow.source.name": "train.py",
        "note": "n" * MAX_TAG_CHARS,
    }


def test_a_new_run_belongs_to_who_sends_it() -> None:
    tags = of_new_run({USER_TAG: "somebody", PARENT_TAG: "another", "note": "n"}, "journal-1", parent_run_id=None)
    assert (tags["note"], tags[JOURNAL_TAG]) == ("n", "journal-1")
    assert tags[USER_TAG] != "somebody"
    assert PARENT_TAG not in tags
    assert of_new_run({}, "journal-1", parent_run_id="sweep")[PARENT_TAG] == "sweep"


def test_changed_params_are_shortened_until_they_fit() -> None:
    changed = {"train.steps": "5", "comm.mpi.mpirun_options": "x" * 900}
    assert json.loads(fitting_json(changed, max_chars=1000)) == changed | {"comm.mpi.mpirun_options": "x" * 500}
    short = fitting_json(changed, max_chars=120)
    assert parse_changed(short) == changed | {"comm.mpi.mpirun_options": "x" * 50}
    assert fitting_json(changed, max_chars=10) == "{}"


@pytest.mark.parametrize("tag", [None, "", "edited by hand", "[1]"])
def test_a_tag_that_a_user_has_edited_names_no_params(tag: str | None) -> None:
    assert parse_changed(tag) == {}


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (MlflowException("no", error_code=PERMISSION_DENIED), True),
        (MlflowException("down", error_code=INTERNAL_ERROR), False),
        (MlflowException("file is not a database", error_code=INTERNAL_ERROR), True),
        (ConnectionRefusedError("refused"), False),
        (ModuleNotFoundError("no driver"), True),
        (ValueError("not a URI"), True),
    ],
)
def test_a_retry_is_for_errors_that_may_pass(error: Exception, permanent: bool) -> None:
    assert is_permanent(error) is permanent


def test_an_error_is_one_line() -> None:
    assert one_line(ValueError("first\nsecond")) == "first"
    assert one_line(ValueError("x" * 2 * MAX_MESSAGE_CHARS)) == "x" * MAX_MESSAGE_CHARS
    assert one_line(KeyError()) == "KeyError"
    network = "HTTPConnectionPool(host='a'): Max retries (Caused by E('<x>: [Errno 111] Connection refused'))"
    assert one_line(OSError(network)) == "Connection refused"
    assert one_line(OSError("HTTPConnectionPool(host='a'): Read timed out.")) == "no answer before the timeout"
    assert is_of_what_is_gone(MlflowException("gone", error_code=RESOURCE_DOES_NOT_EXIST))
    assert not is_of_what_is_gone(KeyError())
