from pathlib import Path

import pytest
from sqlalchemy import make_url

from parallax_runner.track.mlflow.store_check import absolute_uri
from parallax_runner.track.mlflow.store_lock import sqlite_path, store_lock


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("sqlite:////var/db/mlflow.db", Path("/var/db/mlflow.db")),
        ("sqlite:////var/mlflow.db?timeout=5", Path("/var/mlflow.db")),
        ("sqlite:///mlflow.db", Path("mlflow.db").absolute()),
        ("sqlite:///:memory:", None),
        ("sqlite://", None),
        ("http://host:5000", None),
    ],
)
def test_where_the_database_is(uri: str, path: Path | None) -> None:
    assert sqlite_path(uri) == path


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"), store_lock(tmp_path / "none" / "mlflow.db"):
        pass


def test_without_a_database_there_is_nothing_to_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with store_lock(None), store_lock(None):
        assert list(tmp_path.iterdir()) == []
    with store_lock(Path("mlflow.db")):
        assert [path.name for path in tmp_path.iterdir()] == [".mlflow.db.lock"]


@pytest.mark.parametrize("name", ["plain", "what?", "50%", "a%20b", "%3F", "[x]", "back\\slash", "#;&=+ ", "ü"])
def test_a_database_is_found_wherever_it_is(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What we take for its path is what SQLAlchemy, through which MLflow opens it, takes for it."""
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(folder)
    uri = absolute_uri("sqlite:///mlflow.db?timeout=3")
    assert sqlite_path(uri) == folder / "mlflow.db"
    assert absolute_uri(uri) == uri
    assert make_url(uri).database == str(folder / "mlflow.db")
    assert make_url(uri).query == {"timeout": "3"}
