"""Models of keras_rs train as in plain Keras and are served, with the real package.

The package is not among the locked ones, because only these tests use it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.integration.test_fit_as_keras import expect_equal

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "keras-rs.md"
# The other packages that it needs are among the locked ones.
PACKAGE = "keras-rs==0.4.0"
TRAIN = ROOT / "tests" / "programs" / "train.py"
MODES = ("sharded-2", "hybrid-2")


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that can import the package."""
    folder = tmp_path_factory.mktemp("packages")
    uv = subprocess.run([ROOT / "scripts/setup", "--uv"], check=True, capture_output=True, text=True, timeout=120)
    install = [uv.stdout.strip(), "pip", "install", "--quiet", "--no-deps", "--target", folder, PACKAGE]
    subprocess.run(install, check=True, timeout=300)
    return os.environ | {"PYTHONPATH": f"{folder}:{ROOT}"}


def run(*command: str | Path, cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["keras_rs_clicks", "keras_rs_ranking", "keras_rs_retrieval"])
def test_a_program_trains_as_in_plain_keras(name: str, env: dict[str, str], tmp_path: Path) -> None:
    run(TRAIN, name, "left.json", "plain", *MODES, cwd=tmp_path, env=env)
    found = json.loads((tmp_path / "left.json").read_text(encoding="utf-8"))
    expected = found.pop("plain")
    assert list(found) == [*MODES]
    for mode, one in found.items():
        expect_equal(one["history"], expected["history"], f"{mode} history")
        for (path, values), (_, theirs) in zip(one["variables"], expected["variables"], strict=True):
            np.testing.assert_allclose(values, theirs, rtol=1e-8, atol=1e-11, err_msg=f"{mode} {path}")
    check_tables_are_sharded(tmp_path / "sharded-2" / "plan.json")


def check_tables_are_sharded(plan: Path) -> None:
    """Checks that each table has a sparse gradient, and that its rows are divided among the ranks."""
    variables = json.loads(plan.read_text(encoding="utf-8"))["variables"]
    tables = [one for one in variables if one["name"].endswith("/embeddings")]
    assert len(tables) > 1
    assert {(one["gradient"], one["route"]) for one in tables} == {("sparse", "alltoall")}


def test_the_script_of_the_page_trains_and_serves(env: dict[str, str], tmp_path: Path) -> None:
    script, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    trained, served, loaded = run("train.py", cwd=tmp_path, env=env).splitlines()[-3:]
    auc, *evaluated = [float(number) for number in re.findall(r"\d\.\d+", trained)]
    assert auc > 0.8
    assert auc == pytest.approx(evaluated[1], abs=1e-4)
    predictions = [np.fromstring(line.strip("[]"), sep=" ") for line in (served, loaded)]
    assert len(predictions[0]) == 3
    np.testing.assert_allclose(*predictions, rtol=1e-5)
