"""A data source from a package outside this repository: one module, one YAML file."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

import pytest

from tests.integration.runs import launch

# docs/extending.md shows both.
MODULE = '''
"""Reads points from a CSV file."""

import numpy as np

from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.errors import DataError, Setting


def load(*, path, validation_examples, seed):
    """Returns the columns of the file as the features, and holds out the last lines for validation."""
    columns = np.genfromtxt(path, delimiter=",", names=True, dtype=np.float32)
    if len(columns) <= validation_examples:
        raise DataError(f"the file has only {len(columns)} lines").about(Setting.of("data.path", path))
    count = len(columns) - validation_examples
    return ArrayDataset(
        train={name: columns[name][:count] for name in columns.dtype.names},
        validation={name: columns[name][count:] for name in columns.dtype.names},
        words_per_example=None,
        seed=seed,
    )
'''
CONFIG = """
# Points from a CSV file with a header.
_target_: csv_points.load
path: ??? # a file with the columns x and y
validation_examples: 4 # total over all workers
seed: ${train.seed} # seed of the order of examples
batch_size: 2 # examples per replica per step
"""
ARGUMENTS = ("data=points", "data.path=points.csv", "model=simple", "comm=mpi", "train.steps=3", "tracking=off")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The files of the package's author, and a file with data in the working folder."""
    package = tmp_path / "package"
    (package / "conf" / "data").mkdir(parents=True)
    (package / "csv_points.py").write_text(MODULE)
    (package / "conf" / "data" / "points.yaml").write_text(CONFIG.lstrip())
    assert len([path for path in package.rglob("*") if path.is_file()]) == 2
    lines = ["x,y", *(f"{x / 10},{x - 5}" for x in range(24))]
    (tmp_path / "points.csv").write_text("\n".join(lines) + "\n")
    return package


def test_two_workers_train_with_it(package: Path, tmp_path: Path) -> None:
    arguments = (*ARGUMENTS, "train.validate_steps=3")
    run = launch("--config-dir", str(package / "conf"), *arguments, cwd=tmp_path, python_path=package).expect_success()
    assert (run.summary["steps"], run.summary["global_batch"]) == (3, 4)
    assert isfinite(run.summary["loss_last"]) and isfinite(run.summary["validation_loss"])


def test_its_keys_are_checked_and_explained(package: Path, tmp_path: Path) -> None:
    def answer(*arguments: str) -> str:
        run = launch("--config-dir", str(package / "conf"), *arguments, cwd=tmp_path, python_path=package)
        assert run.exit_status == 2
        return run.stderr

    assert "data.pth=x (command line)" in answer(*ARGUMENTS, "data.pth=x")
    assert "data.validation_examples=few (command line): expected an integer" in answer(
        *ARGUMENTS, "data.validation_examples=few"
    )
    assert "data.path=no.csv (command line): no such file" in answer(*ARGUMENTS, "data.path=no.csv")
    told = answer(*ARGUMENTS, "data.validation_examples=24")
    assert "data.path=points.csv (command line): the file has only 24 lines" in told
