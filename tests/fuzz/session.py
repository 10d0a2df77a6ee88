"""Trains random models with the package and with untouched TensorFlow, and compares them."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.fuzz.launch import train_all
from tests.fuzz.module import write_models
from tests.fuzz.outcomes import DIFFERENT, EQUAL, NOISE, RANKS_DIFFER, Outcome, Results
from tests.fuzz.random_model import RandomModel

ROOT = Path(__file__).resolve().parents[2]
# Other orders of the examples, which tell noise from a difference.
ORDERS = (1, 2, 3)


def outcomes_of(
    models: Sequence[RandomModel], folder: Path, tell: Callable[[str], None] = lambda line: None
) -> list[Outcome]:
    """Returns what became of each model. Writes the models' sources and all results to the folder, which is empty."""
    sources, run = folder / "models", folder / "run"
    sources.mkdir()
    write_models(sources, list(models))
    with plain_process(sources, folder / "plain", 0, models) as reference:
        ended = train_all(list(models), run, tell)
        assert reference.wait() == 0, (folder / "plain" / "log.txt").read_text()
    results = Results(run, folder / "plain", ended=ended)
    found = [results.outcome(model) for model in models]
    doubtful = [outcome.model for outcome in found if outcome.status in (DIFFERENT, RANKS_DIFFER)]
    if not doubtful:
        return found
    others = tuple(folder / f"plain_{order}" for order in ORDERS)
    for order, other in zip(ORDERS, others, strict=True):
        with plain_process(sources, other, order, doubtful) as reference:
            assert reference.wait() == 0, (other / "log.txt").read_text()
    results = Results(run, folder / "plain", others, ended)
    again = {model.seed: _but_for_noise(results.outcome(model)) for model in doubtful}
    return [again.get(outcome.model.seed, outcome) for outcome in found]


def _but_for_noise(outcome: Outcome) -> Outcome:
    return dataclasses.replace(outcome, status=NOISE) if outcome.status == EQUAL else outcome


def plain_process(sources: Path, out: Path, order: int, models: Sequence[RandomModel]) -> subprocess.Popen[bytes]:
    """Starts the reference in a process of its own, which does not import the package."""
    out.mkdir()
    command = [sys.executable, "-m", "tests.fuzz.plain", str(sources), str(out), str(order)]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    with open(out / "log.txt", "wb") as log:
        return subprocess.Popen(
            [*command, *(str(model.seed) for model in models)],
            cwd=ROOT,
            env=os.environ | quiet,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
