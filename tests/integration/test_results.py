"""`python -m benchmarks.results` trains in real runs. Only the data is made for the test."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

import benchmarks.results.__main__ as results
from benchmarks.results import ratings, translation
from tests.ratings_wheel import write_wheel


def test_modes_of_the_ratings_reach_the_same_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = replace(ratings.EXPERIMENTS[0], global_batch=16, steps=4, measure_steps=2)
    monkeypatch.setitem(results.EXPERIMENTS, "ratings_1", short)
    wheel, out = write_wheel(tmp_path / "recbole.whl"), tmp_path / "out"
    status = results.main(["ratings_1", str(wheel), "--modes", "sharded,local", "--rounds", "1", "--out", str(out)])
    assert status == 0
    found = json.loads((out / "ratings_1.json").read_text())
    sharded, local = found["curves"]
    assert [point["step"] for point in sharded["points"]] == [2, 4]
    assert sharded["points"][0]["secs"] < sharded["points"][1]["secs"]
    for one, other in zip(sharded["points"], local["points"], strict=True):
        assert one["value"] == pytest.approx(other["value"], rel=1e-5)
    assert (out / "ratings_1.png").read_bytes().startswith(b"\x89PNG")
    assert "| local |" in (out / "ratings_1.md").read_text()


def test_modes_of_the_translation_are_measured_by_their_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part, language, line in itertools.product(("train", "test_2016_flickr"), ("en", "de"), ("a man runs .",)):
        (tmp_path / f"{part}.{language}").write_text(f"{line}\n" * 32)
    settings = tuple(one for one in translation.EXPERIMENT.settings if not one.startswith("ckpt.save_steps"))
    settings += ("ckpt.save_steps=10", "model.learning_rate=0.02")
    short = replace(translation.EXPERIMENT, settings=settings, global_batch=16, steps=20, measure_steps=10)
    monkeypatch.setitem(results.EXPERIMENTS, "translation", short)
    out = tmp_path / "out"
    arguments = ["translation", str(tmp_path), "--modes", "mpi,local", "--rounds", "1", "--out", str(out)]
    assert results.main(arguments) == 0
    for curve in json.loads((out / "translation.json").read_text())["curves"]:
        assert [point["step"] for point in curve["points"]] == [10, 20]
        assert curve["points"][1]["value"] == pytest.approx(100.0)


def test_wrong_arguments_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments, said in (
        (["ratings_1", str(tmp_path / "none")], "expected a path that exists"),
        (["ratings_1", str(tmp_path), "--modes", "mpi,fast"], "got fast"),
        (["ratings_1", str(tmp_path), "--rounds", "0"], "expected 1 or more"),
        (["ratings_1", str(tmp_path), "--out", str(tmp_path)], "already exists"),
    ):
        with pytest.raises(SystemExit):
            results.main(arguments)
        assert said in capsys.readouterr().err
