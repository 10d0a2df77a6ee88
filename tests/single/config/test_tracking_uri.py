"""A password in `tracking.uri` is refused before anything is written; the environment is where it belongs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser

from parallax_runner.config.tracking_uri import corrected_sqlite, is_in_memory
from parallax_runner.driver.check import check
from parallax_runner.errors import ConfigError
from parallax_runner.track.mlflow.destination import chosen_uri
from parallax_runner.track.mlflow.store_check import check_store
from tests.single.config.in_process import answer_of_hydra

WEB, DATABASE = "http://me:s3cret@host:5000", "postgresql://me:s3cret@host/db"


def refused(*arguments: str) -> str:
    with pytest.raises(ConfigError) as error:
        check(get_args_parser().parse_args(list(arguments)))
    assert "s3cret" not in str(error.value)
    return str(error.value)


def test_the_remedy_is_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = refused(f"tracking.uri='{WEB}'")
    assert message.startswith("tracking.uri=http://***@host:5000 (command line): a password or token in the URI")
    assert "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN" in message
    message = refused(f"tracking.uri='{DATABASE}'")
    assert message.startswith("tracking.uri=postgresql://me:***@host/db (command line): ")
    assert "set tracking.uri=null, and set the environment variable MLFLOW_TRACKING_URI" in message
    monkeypatch.setenv("STORE", DATABASE)
    assert "me:***@host" in refused("tracking.uri=${oc.env:STORE}")
    assert "job 1" in refused("-m", f"tracking.uri='sqlite:///a','{WEB}'")
    assert "me:***@host" in refused("-m", "train.seed=1,2", f"tracking.uri='{DATABASE}'")
    assert "action=sync" not in refused("action=sync", "run_dir=a", f"tracking.uri='{WEB}'")
    # Messages about other mistakes show what was typed, too.
    assert "http://***@host" in refused(f"tracking.uri={WEB}/#/")
    assert "http://***@host" in refused(f"tracking.url='{WEB}'")
    assert list(tmp_path.iterdir()) == []


def test_a_process_leaves_nothing_of_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "parallax_runner", f"tracking.uri='{WEB}'", "hydra.output_subdir=.hydra"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "s3cret" not in ended.stdout + ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_store_in_the_environment_that_is_not_used_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    told = "MLFLOW_TRACKING_URI (environment): this variable has no effect, because tracking.uri=sqlite:///mlflow.db"
    assert told in answer_of_hydra("model=simple", cwd=tmp_path).stderr
    for line in ("tracking.uri=sqlite:///mlflow.db", "tracking.uri=null", "tracking=off", "action=plan"):
        assert "MLFLOW_TRACKING_URI" not in answer_of_hydra("model=simple", line, cwd=tmp_path).stderr


def test_null_is_the_store_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigError, match=r"tracking\.uri=null: .*MLFLOW_TRACKING_URI, which is not set"):
        chosen_uri(None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", DATABASE)
    assert chosen_uri(None) == DATABASE
    assert chosen_uri("http://host") == "http://host", "what is given counts"
    with pytest.raises(ConfigError, match=r"me:\*\*\*@host"):
        chosen_uri(DATABASE)


@pytest.mark.parametrize(
    ("uri", "meant"),
    [
        ("sqlite://mlflow.db", "sqlite:///mlflow.db"),
        ("sqlite://runs/mlflow.db?timeout=5", "sqlite:///runs/mlflow.db?timeout=5"),
        ("sqlite:/srv/mlflow.db", "sqlite:////srv/mlflow.db"),
        ("sqlite:mlflow.db", "sqlite:///mlflow.db"),
        ("sqlite+pysqlite://mlflow.db", "sqlite+pysqlite:///mlflow.db"),
        ("sqlite:///mlflow.db", None),
        ("sqlite:////srv/mlflow.db", None),
        ("sqlite://", None),
        ("sqlite://?timeout=5", None),
        ("postgresql://host/db", None),
        ("http://host", None),
    ],
)
def test_missing_slashes_are_given_back(uri: str, meant: str | None) -> None:
    assert corrected_sqlite(uri) == meant


def test_an_address_with_a_slash_short_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = refused("tracking.uri=sqlite://mlflow.db")
    assert message.startswith("tracking.uri=sqlite://mlflow.db (command line): a relative path follows three slashes")
    assert message.endswith("Did you mean tracking.uri=sqlite:///mlflow.db?")
    assert r"job 1 (tracking.uri=sqlite\://b): " in refused("-m", "tracking.uri=sqlite:///a,sqlite://b")
    with pytest.raises(ConfigError, match=r"three slashes: sqlite:///mlflow\.db"):  # as the environment may have it
        check_store("sqlite://mlflow.db", "runs")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "uri",
    [
        *("sqlite://", "sqlite:///", "sqlite:///?timeout=5", "sqlite:///:memory:", "sqlite+pysqlite:///", "sqlite:"),
        *("sqlite:///file::memory:?uri=true", "sqlite:///file:x?mode=memory&uri=true"),
    ],
)
def test_a_database_in_memory_is_refused(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_in_memory(uri)
    message = refused(f"tracking.uri='{uri}'")
    assert message.startswith(
        f"tracking.uri={uri} (command line): this database is in memory, so nothing would be kept"
    )
    with pytest.raises(ConfigError, match="in memory, so nothing would be kept"):  # as the environment may have it
        check_store(uri, "runs")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("uri", ["sqlite:///mlflow.db", "sqlite:////srv/memory", "postgresql://h/:memory:", "http://h"])
def test_other_stores_are_not_in_memory(uri: str) -> None:
    assert not is_in_memory(uri)
