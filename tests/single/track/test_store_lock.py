from pathlib import Path

import pytest

from parallax_runner.track.store_lock import sqlite_path, store_lock


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


def test_without_a_database_there_is_nothing_to_lock() -> None:
    with store_lock(None):
        pass
