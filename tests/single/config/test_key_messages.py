"""Wrong names of keys."""

from pathlib import Path

import pytest

from tests.single.config.refused import run, wrong_line

CASES = {
    "key by another name": ("optimizer.lr=0.1", "Did you mean optimizer.learning_rate=0.1?"),
    "key by another name in a group without it": ("train.lr=0.1", "Did you mean optimizer.learning_rate=0.1?"),
    "key by another name alone": ("num_workers=3", "Did you mean cluster.workers=3?"),
    "key that Hydra has deep down": ("output_dir=x", "Did you mean run_dir=x?"),
    "added key by another name alone": ("+lr=3", "lr=3 (command line)", "Did you mean optimizer.learning_rate=3?"),
    "added key by another name in a group without it": ("+train.lr=3", "Did you mean optimizer.learning_rate=3?"),
    "added key without its group": ("+learning_rate=3", "Did you mean optimizer.learning_rate=3?"),
    "forced key without its group": ("++steps=5", "steps=5 (command line)", "Did you mean train.steps=5?"),
    "added key of a misspelt group": ("+trian.steps=5", "trian.steps=5 (command line)", "Did you mean train.steps=5?"),
    "added key beside the right one": ("++train.steps=4 +steps=5", "steps=5 (command", "Did you mean train.steps=5?"),
    "added key beside another added key": ("+optimizer.lr=2 +lr=3", "Did you mean optimizer.learning_rate=3?"),
    "key in capitals": ("train.Steps=5", "Did you mean train.steps=5?"),
    "key": ("train.step=5", "train.step=5 (command line)", "Did you mean train.steps=5?"),
    "key without its group": ("steps=5", "steps=5 (command line)", "Did you mean train.steps=5?"),
    "key of a misspelt group": ("trian.steps=5", "trian.steps=5 (command line)", "Did you mean train.steps=5?"),
    "key below a value": ("train.steps.x=5", "train.steps.x=5 (command line)", "Did you mean train.steps=5?"),
    "key below null": ("tracking.run_name.x=5", "tracking.run_name.x=5 (command line)", "unknown key"),
    "added key": ("+train.foo=1", "train.foo=1 (command line)", "train has steps, seed, log_every"),
    "key of a mapping": ("train={step: 5}", "train.step=5 (command line)", "Did you mean train.steps=5?"),
    "key of the model": (
        "model.keep_prop=0.5",
        "model.keep_prop=0.5 (command line)",
        "Did you mean model.keep_prob=0.5?",
    ),
    "key of the data": ("data.bach_size=5", "data.bach_size=5 (command line)", "Did you mean data.batch_size=5?"),
    "key of Hydra": ("hydra.run.dri=x", "hydra.run.dri=x (command line)", "Did you mean hydra.run.dir=x?"),
    "removed": ("~train.steps", "~train.steps (command line)", "cannot be removed"),
    "tag": ("tracking.tags.team=x", "Did you mean +tracking.tags.team=x?"),
    "nothing near": ("model.foo=4", "model.foo=4 (command line): unknown key; model has _target_, vocab_size"),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_key(name: str, tmp_path: Path) -> None:
    wrong_line(CASES[name], tmp_path)


@pytest.mark.parametrize("name", ["key"])
def test_wrong_key_as_a_user_types_it(name: str, tmp_path: Path) -> None:
    wrong_line(CASES[name], tmp_path, respond=run)
