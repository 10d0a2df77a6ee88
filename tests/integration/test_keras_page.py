"""The script of docs/keras-on-several-machines.md runs, on this machine and with a list of hosts."""

from __future__ import annotations

import re
from pathlib import Path

import keras
import pytest

from tests.integration.test_fit import run

PAGE = Path(__file__).parents[2] / "docs" / "keras-on-several-machines.md"


@pytest.mark.parametrize("has_hosts", [False, True])
def test_the_script_trains(has_hosts: bool, tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    if has_hosts:
        (overrides,) = re.findall(r"`(overrides=\[.*?\])`", text)
        assert script.count("workers=2") == 1 and "replace `workers=2` by `workers=None`" in text
        script = script.replace("workers=2", f"workers=None, {overrides}")
        (tmp_path / "hosts.txt").write_text("localhost: 0,1\n", encoding="utf-8")
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    done = run(tmp_path / "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "starting 2 workers" in done.stderr
    assert keras.models.load_model(tmp_path / "words.keras").optimizer.iterations.numpy() == 96
