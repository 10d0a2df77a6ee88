"""The script of docs/growing.md trains, with workers and in plain Keras, with the same result."""

from __future__ import annotations

import re
from pathlib import Path

from tests.integration.test_fit import run

PAGE = Path(__file__).parents[2] / "docs" / "growing.md"


def test_the_script_trains_as_plain_keras(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    script, _ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (line,) = [line for line in script.splitlines() if line.startswith("parallax_runner.fit(")]
    (plain,) = re.findall(r"With `(model\.fit\(.*?\))` in place", text)
    told = []
    for name, code in (("workers.py", script), ("plain.py", script.replace(line, plain))):
        (tmp_path / name).write_text(code, encoding="utf-8")
        done = run(tmp_path / name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert ("starting 2 workers" in done.stderr) == (name == "workers.py")
        told += [line for line in done.stdout.splitlines() if line.startswith("keys:")]
    assert told[0] == told[1]
    keys, distinct = map(int, re.findall(r"\d+", told[0]))
    assert keys == distinct > 100
