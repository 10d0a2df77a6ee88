"""A tracking store made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from parallax_runner.track.mlflow import runs
from parallax_runner.track.mlflow.journal import Header
from tests.shared import shared


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its tables made, which takes seconds: once for all processes of the session."""

    def make(folder: Path) -> Path:
        database = folder / "mlflow.db"
        runs.open_run(Header(f"sqlite:///{database}", "first", None), None, None)
        return database

    return shared(tmp_path_factory, "empty_store", make)


@pytest.fixture
def uri(empty_store: Path, tmp_path: Path) -> str:
    """A store of the test's own."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"
