"""The scripts of docs/growing.md train, with workers and in plain Keras, with the same result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.test_fit import run

PAGE = Path(__file__).parents[2] / "docs" / "growing.md"
GROWS, COMES_AND_GOES, _ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def told(script: str, plain: str, folder: Path) -> list[int]:
    """Returns the numbers of keys that a script prints, with workers and with the line `plain` instead of them."""
    (line,) = [line for line in script.splitlines() if line.startswith("parallax_runner.fit(")]
    found = []
    for name, code in (("workers.py", script), ("plain.py", script.replace(line, plain))):
        (folder / name).write_text(code, encoding="utf-8")
        done = run(folder / name, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert ("starting 2 workers" in done.stderr) == (name == "workers.py")
        found += [line for line in done.stdout.splitlines() if line.startswith("keys:")]
    assert found[0] == found[1]
    return list(map(int, re.findall(r"\d+", found[0])))


@pytest.mark.parametrize("comm", ["sharded", "hybrid"])
def test_the_script_trains_as_plain_keras(comm: str, tmp_path: Path) -> None:
    (plain,) = re.findall(r"With `(model\.fit\(.*?\))` in place", PAGE.read_text(encoding="utf-8"))
    keys, distinct = told(GROWS.replace('comm="sharded"', f'comm="{comm}"'), plain, tmp_path)
    assert keys == distinct > 100


def test_keys_come_and_go_as_in_plain_keras(tmp_path: Path) -> None:
    keys, distinct = told(COMES_AND_GOES, "model.fit(users, labels, batch_size=128, shuffle=False)", tmp_path)
    assert 0 < keys < distinct / 2
