"""What is wrong in a user's own files is named with its file and line."""

from pathlib import Path

import pytest

from tests.single.config.in_process import answer, answer_of_hydra
from tests.single.config.refused import refused, run

OWN_FILES = {
    "type": ("train:\n  seed: 2\n  steps: abc\n", "train.steps=abc (own/experiment/mine.yaml:4): expected an integer"),
    "range": ("train: {steps: -3}\n", "train.steps=-3 (own/experiment/mine.yaml:2): expected an integer, at least 1"),
    "key": ("train:\n  stepz: 5\n", "train.stepz=5 (own/experiment/mine.yaml:3)", "Did you mean train.steps=5?"),
    "key of the model": (
        "model:\n  keep_prop: 0.5\n",
        "(own/experiment/mine.yaml:3)",
        "Did you mean model.keep_prob=0.5?",
    ),
    "type of the model's": ("model:\n  keep_prob: abc\n", "model.keep_prob=abc (own/experiment/mine.yaml:3)"),
    "group": ("trian:\n  steps: 4\n", "(own/experiment/mine.yaml:2)", "Did you mean train?"),
    "choice": (
        "defaults:\n  - override /comm: hybird\n",
        "comm=hybird (own/experiment/mine.yaml:3)",
        "Did you mean comm=hybrid?",
    ),
    "group of a choice": (
        "defaults:\n  - override /com: mpi\n",
        "com=mpi (own/experiment/mine.yaml:3)",
        "Did you mean comm?",
    ),
    "combination": (
        "defaults:\n  - override /comm: mpi\ncomm:\n  sync: false\n",
        "comm.sync=false (own/experiment/mine.yaml:5): asynchronous training needs the servers of comm=ps",
    ),
    "reference": ("train:\n  seed: ${no.such}\n", "train.seed=${no.such} (own/experiment/mine.yaml:3)"),
    "not YAML": ("train: {steps:\n  - : x\n", "own/experiment/mine.yaml:3: invalid YAML"),
}


@pytest.mark.parametrize("name", OWN_FILES)
def test_wrong_file(name: str, tmp_path: Path) -> None:
    content, *fragments = OWN_FILES[name]
    assert fragments
    folder = tmp_path / "own" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("# @package _global_\n" + content)
    message = refused(answer("--config-dir", "own", "experiment=mine", cwd=tmp_path))
    for fragment in fragments:
        assert fragment in message


def test_wrong_file_of_the_search_path(tmp_path: Path) -> None:
    folder = tmp_path / "own" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("# @package _global_\ntrain:\n  step: 5\n")
    message = refused(answer(f"hydra.searchpath=[file://{tmp_path}/own]", "experiment=mine", cwd=tmp_path))
    assert "train.step=5 (own/experiment/mine.yaml:3)" in message
    (folder / "mine.yaml").write_text("# @package _global_\ntrain:\n  steps: 17\n")
    shown = run("--cfg", "job", f"hydra.searchpath=[{tmp_path}/own]", "experiment=mine", cwd=tmp_path)
    assert shown.returncode == 0 and "steps: 17" in shown.stdout


@pytest.mark.parametrize("target", ["parallax_runner.data.zipf.load", "elsewhere.load"])
def test_a_source_whose_file_has_a_batch_size_needs_one_whoever_wrote_it(target: str, tmp_path: Path) -> None:
    file = tmp_path / "own" / "data" / "mine.yaml"
    file.parent.mkdir(parents=True)
    chosen = ("--config-dir", "own", "data=mine", "++data.batch_size=null")
    file.write_text(f"_target_: {target}\nvocab_size: 9\nbatch_size: 2\n")
    message = refused(answer(*chosen, cwd=tmp_path))
    assert message == "data.batch_size=null (command line): expected an integer, at least 1."
    for without in ("", "batch_size: null\n"):
        file.write_text(f"_target_: {target}\nvocab_size: 9\n{without}")
        assert answer_of_hydra(*chosen, cwd=tmp_path).returncode == 0


def test_unreadable_folder_names_the_origin(tmp_path: Path) -> None:
    folder = tmp_path / "own" / "data"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("_target_: x.load\nbatch_size: 2\npath: /no/such\nvocab_size: 9\n")
    message = refused(answer("--config-dir", "own", "data=mine", cwd=tmp_path))
    assert message.startswith("data.path=/no/such (own/data/mine.yaml:3): no such file or folder")
