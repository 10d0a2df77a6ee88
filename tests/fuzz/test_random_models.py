"""Random models end as untouched TensorFlow leaves them, or are refused before the first step:
docs/design/0061-random-models.md."""

from __future__ import annotations

import dataclasses
import re
import secrets
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz import kinds, launch, report
from tests.fuzz.outcomes import CRASHED, HUNG
from tests.fuzz.random_model import GRAPH, KERAS, STEP, RandomModel, Segment, random_model
from tests.fuzz.session import ROOT, outcomes_of
from tests.fuzz.small_part import SMALL

NAMED = range(300)

pytestmark = pytest.mark.timeout(3600)


def check(seeds: list[int], folder: Path) -> None:
    """Trains the models, and checks that there is no find and that few are refused."""
    outcomes = outcomes_of([random_model(seed) for seed in seeds], folder)
    text = "\n".join(report.lines(outcomes, folder))
    print(text)
    assert not report.finds(outcomes), text
    assert report.refused_share(outcomes) <= report.REFUSED_SHARE, text


def test_named_models_have_enough_of_each_kind() -> None:
    models = [random_model(seed) for seed in NAMED]
    for group, share in report.group_shares(models).items():
        assert share >= report.GROUP_SHARE, group
    counts = Counter(label for model in models for label in model.labels)
    for kind in (kind for group in kinds.GROUPS.values() for kind in group):
        assert counts[kind] >= 4, kind
    assert {model.front for model in models} == {KERAS, STEP, GRAPH}
    comms = Counter(segment.comm for model in models for segment in model.segments)
    assert set(comms) == {"local", "mpi", "ps", "hybrid", "sharded"}
    assert min(comms.values()) >= 15
    assert {len(model.segments) for model in models} == {1, 2}


def test_a_seed_names_a_model_on_every_machine() -> None:
    """In a process with another order of sets of strings."""
    command = "from tests.fuzz.random_model import random_model; print(random_model(17).source, end='')"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", command], cwd=ROOT, env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        )
        assert done.stdout.decode() == random_model(17).source


def test_sources_are_modules() -> None:
    for seed in NAMED:
        compile(random_model(seed).source, f"seed_{seed}.py", "exec")


def test_the_small_part_has_each_group_in_one_launch() -> None:
    models = [random_model(seed) for seed in SMALL]
    assert {model.processes for model in models} == {2}
    assert set().union(*(kinds.groups_of(model.labels) for model in models)) == set(kinds.GROUPS)
    assert {model.front for model in models} == {KERAS, STEP, GRAPH}


def test_a_model_that_hangs_or_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "HANG_SECS", 30.0)
    healthy = random_model(next(seed for seed in NAMED if random_model(seed).segments == (Segment("mpi", 2),)))
    hanging = broken(healthy, -1, "import time; time.sleep(1000)")
    failing = broken(healthy, -2, "raise ValueError('of a test')")
    found = {one.model.seed: one for one in outcomes_of([hanging, failing, healthy], tmp_path)}
    assert found[-1].status == HUNG
    assert found[-2].status == CRASHED
    assert "of a test" in found[-2].text
    assert healthy.seed in found
    assert found[healthy.seed].status not in (HUNG, CRASHED)


def broken(model: RandomModel, seed: int, line: str) -> RandomModel:
    """Returns the same model with this line where its layers or variables are made; untouched TensorFlow skips it."""
    guarded = f"    if 'parallax_runner' in __import__('sys').modules: {line}"
    head, body = re.split(r"(?<=:\n)(?=    KEPT.clear|    global_step)", model.source, maxsplit=1)
    return dataclasses.replace(model, seed=seed, source=f"{head}{guarded}\n{body}")


def test_the_small_part_finds_nothing(tmp_path: Path) -> None:
    check(list(SMALL), tmp_path)


def test_all_named_models_find_nothing(tmp_path: Path) -> None:
    check(list(NAMED), tmp_path)


def test_drawn_models_find_nothing(tmp_path: Path) -> None:
    """Prints the seeds, with which the command `python -m tests.fuzz --seeds` trains the same models again."""
    first = secrets.randbelow(10**9)
    print(f"--seeds {first}:{first + 100}")
    check(list(range(first, first + 100)), tmp_path)
