"""Folders of configuration files that a user passes with --config-dir or --config-path."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.single.config.in_process import answer, answer_of_hydra

GLOBAL = "# @package _global_\n"


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A tree with groups of its own beside `experiment`, as templates of projects with Hydra have it."""
    files = {
        "hparams_search/seeds": f"{GLOBAL}hydra:\n  sweeper:\n    params:\n      train.seed: 1,2\n",
        "paths/cluster": f"{GLOBAL}ckpt:\n  dir: /scratch/ckpt\n",
        "paths/plain": "root_dir: /data\n",
        "experiment/mine": "train:\n  steps: 5\n",
        "experiment/deep/mine": "train:\n  steps: 5\n",
    }
    for name, text in files.items():
        path = tmp_path / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "conf"


def refusal(*arguments: str, cwd: Path) -> str:
    done = answer(*arguments, cwd=cwd)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def test_a_group_of_ones_own_needs_a_plus_sign(conf: Path) -> None:
    told = refusal("-m", f"--config-dir={conf}", "hparams_search=seeds", "model=simple", cwd=conf)
    assert "group of your own" in told and "Did you mean +hparams_search=seeds?" in told
    again = answer_of_hydra("-m", f"--config-dir={conf}", "+hparams_search=seeds", "model=simple", cwd=conf)
    assert again.returncode == 0, again.stderr
    shown = answer_of_hydra(f"--config-dir={conf}", "+paths=cluster", "--cfg", "job", cwd=conf)
    assert "dir: /scratch/ckpt" in shown.stdout


def test_a_group_of_the_package_needs_none(conf: Path) -> None:
    assert "Did you mean comm=ps?" in refusal(f"--config-dir={conf}", "+comm=ps", cwd=conf)
    assert "expected one of cluster, plain." in refusal(f"--config-dir={conf}", "+paths=nope", cwd=conf)


@pytest.mark.parametrize("choice", ["experiment=mine", "experiment=deep/mine", "+paths=plain"])
def test_a_file_without_a_package_is_named_with_the_line_that_it_lacks(conf: Path, choice: str) -> None:
    told = refusal(f"--config-dir={conf}", choice, cwd=conf)
    group, _, name = choice.lstrip("+").partition("=")
    assert f"{group}/{name}.yaml: its keys are placed below «{group}" in told
    assert "add the line «# @package _global_»" in told


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The configuration that a run wrote."""
    shown = answer_of_hydra("--cfg", "job", "--resolve", "model=simple", cwd=tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(shown.stdout)
    (folder / "again.yaml").write_text(shown.stdout)
    return folder


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--config-dir={}", "--config-name=config"], "config.yaml would be ignored, because "),
        (["--config-dir={}", "--config-name=again"], "again.yaml: a run wrote this file"),
        (["--config-path={}"], "config.yaml: a run wrote this file"),
        (["--config-name={}/config"], "config.yaml: a run wrote this file"),
        (["--config-name={}/absent"], "/absent (command line): there is no such file"),
        (["--experimental-rerun={}/config.pickle"], "this flag is not supported"),
    ],
)
def test_the_configuration_of_a_run_is_no_main_configuration(run_dir: Path, words: list[str], reason: str) -> None:
    """Before, the run's values were ignored without a message, or the message named a key."""
    told = refusal(*(word.format(run_dir) for word in words), "action=plan", cwd=run_dir)
    assert reason in told and "repeat " in told
