"""Text files that are read whole."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from parallax_runner.files import plain


def test_a_short_file_needs_little_memory(tmp_path: Path) -> None:
    """Also if the process may use hardly any more memory, as at the end of a run."""
    (tmp_path / "file").write_text("{}")
    tracemalloc.start()
    try:
        assert plain.read_object(tmp_path / "file") == ("{}", {})
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 4 * plain.BLOCK_BYTES


@pytest.mark.parametrize("more_bytes", [0, 1])
def test_the_size_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more_bytes: int) -> None:
    monkeypatch.setattr(plain, "MOST_TEXT_BYTES", 2 * plain.BLOCK_BYTES)
    text = "x" * (plain.MOST_TEXT_BYTES + more_bytes)
    (tmp_path / "file").write_text(text)
    if not more_bytes:
        assert plain.read_text(tmp_path / "file") == text
        return
    with pytest.raises(ValueError, match="larger than"):
        plain.read_text(tmp_path / "file")
