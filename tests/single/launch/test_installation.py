"""What a process tells the driver of its host's installation."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_runner.launch.installation import OWN_FILES, PACKAGE, fault_of, versions

OWN = {"Python": "3.11.2", "TensorFlow": "2.21.0"}


def test_equal_installations_have_no_fault() -> None:
    assert fault_of({**OWN, "more": "1"}, OWN) is None


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({**OWN, "TensorFlow": "2.20.0"}, "it has TensorFlow 2.20.0, but the driver has TensorFlow 2.21.0"),
        (
            {"Python": "3.11.2"},
            "has TensorFlow None, but the driver has TensorFlow 2.21.0: all hosts need the same inst",
        ),
    ],
)
def test_a_difference_is_named(found: dict[str, str], told: str) -> None:
    assert told in (fault_of(found, OWN) or "")


def test_versions_are_those_of_the_packages() -> None:
    import horovod
    import keras

    assert (versions()["Keras"], versions()["Horovod"]) == (keras.__version__, horovod.__version__)
    assert "none" not in versions().values()


def test_checkouts_of_the_same_version_differ(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    same = _versions_of(tmp_path)
    with open(tmp_path / PACKAGE.name / "metrics.py", "a") as file:
        file.write("# changed")
    assert same == str(versions()) != _versions_of(tmp_path)
    assert OWN_FILES in (fault_of(versions(), {**versions(), OWN_FILES: "other"}) or "")


def _versions_of(folder: Path) -> str:
    code = "from parallax_runner.launch.installation import versions; print(versions())"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
