"""Whole programs with steps of their own give the weights and history of plain Keras, with any number of workers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.integration.test_fit import run
from tests.integration.test_fit_as_keras import expect_equal

SCRIPT = Path(__file__).parent / "train.py"
# Their batches have different sizes or shapes.
UNEVEN = (
    *("made_batches", "generated", "padded", "buckets"),
    *("translation", "two_tower", "cross_network", "word2vec", "next_item"),
    *("from_mirrored", "own_translation"),
)
MODES = [f"{comm}-{workers}" for workers in (2, 3) for comm in ("hybrid", "sharded", "mpi")]


@pytest.mark.parametrize(
    ("name", "modes"),
    [
        pytest.param("gan", ["mpi-2"], id="gan"),
        pytest.param("wide_and_deep", ["hybrid-2"], id="wide_and_deep"),
        pytest.param("made_batches", ["hybrid-3"], id="made_batches"),
        pytest.param("from_mirrored", ["sharded-3"], id="from_mirrored"),
        *(pytest.param(name, MODES, id=f"more-{name}") for name in ("gan", "vae", "wide_and_deep", *UNEVEN)),
    ],
)
def test_a_program_trains_as_in_plain_keras(name: str, modes: list[str], tmp_path: Path) -> None:
    left = tmp_path / "left.json"
    done = run(SCRIPT, name, str(left), "plain", *modes, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(left.read_text(encoding="utf-8"))
    expected = found.pop("plain")
    assert list(found) == modes
    for mode, one in found.items():
        expect_equal(one["history"], expected["history"], f"{mode} history")
        assert len(one["variables"]) == len(expected["variables"])
        for (path, values), (_, theirs) in zip(one["variables"], expected["variables"], strict=True):
            np.testing.assert_allclose(values, theirs, rtol=1e-8, atol=1e-11, err_msg=f"{mode} {path}")
