"""A file that nothing writes to later is stored once, if MLflow keeps artifacts on the same file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallax_runner.track.mlflow.artifacts import LEAST_LINKED_BYTES, add_file


def fail() -> None:
    raise AssertionError("uploaded")


@pytest.mark.parametrize(("size_bytes", "links"), [(LEAST_LINKED_BYTES, 2), (LEAST_LINKED_BYTES - 1, 1)])
def test_a_large_file_is_linked_however_often_it_is_sent(size_bytes: int, links: int, tmp_path: Path) -> None:
    file, folder = tmp_path / "model.keras", tmp_path / "artifacts"
    file.write_bytes(b"1" * size_bytes)
    for _ in range(2):
        add_file(file, folder.as_uri(), fail)
    assert (folder / file.name).read_bytes() == file.read_bytes()
    assert file.stat().st_nlink == links


def test_a_store_elsewhere_receives_the_file(tmp_path: Path) -> None:
    sent: list[str] = []
    add_file(tmp_path / "model.keras", "mlflow-artifacts:/1/2/artifacts", lambda: sent.append("once"))
    assert sent == ["once"]
