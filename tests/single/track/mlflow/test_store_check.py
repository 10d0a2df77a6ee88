"""Mistakes in `tracking.uri` are told before anything starts, and without MLflow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from parallax_runner.errors import ConfigError
from parallax_runner.track.mlflow.store_check import absolute_uri, check_store


@pytest.mark.parametrize(
    "bad",
    ["", "file:./mlruns", "./mlruns", "foo://bar", "sqlite:////proc/none/mlflow.db", "http://", "sqlite:////proc"],
)
def test_an_unusable_store_is_refused_in_one_message(bad: str) -> None:
    with pytest.raises(ConfigError, match=r"^tracking\.uri=.*sqlite:///mlflow\.db, or set tracking=off") as refused:
        check_store(bad, "exp")
    assert "\n" not in str(refused.value)
    assert bad in str(refused.value)


@pytest.mark.parametrize(
    "good",
    [
        "sqlite:///new.db",
        "http://127.0.0.1:9",
        "https://host/path",
        "postgresql+psycopg2://u:p@h/d",
        "databricks",
    ],
)
def test_what_may_work_is_let_through(good: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_store(good, "exp")
    assert list(tmp_path.iterdir()) == []  # The check creates no database.


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("text" * 1000)
    with pytest.raises(ConfigError, match="not a database"):
        check_store(f"sqlite:///{tmp_path / 'x.db'}", "exp")
    (tmp_path / "empty.db").touch()
    check_store(f"sqlite:///{tmp_path / 'empty.db'}", "exp")


def test_a_deleted_experiment_is_named(uri: str) -> None:
    client = MlflowClient(tracking_uri=uri)
    experiment_id = client.create_experiment("gone")
    check_store(uri, "gone")
    check_store(uri, "never seen")
    client.delete_experiment(experiment_id)
    with pytest.raises(ConfigError, match=r"tracking\.experiment=gone: this experiment was deleted"):
        check_store(uri, "gone")


def test_a_store_is_the_same_from_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_uri("sqlite:///mlflow.db") == f"sqlite:///{tmp_path}/mlflow.db"
    assert absolute_uri("sqlite:///a/b.db?timeout=5") == f"sqlite:///{tmp_path}/a/b.db?timeout=5"
    assert absolute_uri("http://host:5000") == "http://host:5000"
    assert absolute_uri(absolute_uri("sqlite:///mlflow.db")) == absolute_uri("sqlite:///mlflow.db")


def test_it_does_without_mlflow() -> None:
    code = (
        "import sys; from parallax_runner.track.mlflow.store_check import check_store\n"
        "check_store('sqlite:///new.db', 'e'); print('mlflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
