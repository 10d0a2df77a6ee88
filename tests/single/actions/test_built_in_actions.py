"""What the built-in actions declare, refuse and tell. Refusals of the command line: tests/single/config."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from parallax_runner.actions.action import Action
from parallax_runner.actions.evaluate import Evaluate
from parallax_runner.actions.export import Export
from parallax_runner.actions.plan import Plan
from parallax_runner.actions.predict import Predict
from parallax_runner.actions.search import Search
from parallax_runner.actions.simulate import Simulate
from parallax_runner.actions.sync import Sync
from parallax_runner.actions.train import Train
from parallax_runner.actions.uses_checkpoint import UsesCheckpoint
from parallax_runner.actions.verify import NEW_STEPS, Verify
from parallax_runner.config.actions import BUILT_IN, action_named, names_of_actions
from parallax_runner.config.compose import Composer
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.driver.check import validated
from parallax_runner.driver.partition_results import SearchSummary
from parallax_runner.driver.run_summary import RunSummary, VerifySummary
from parallax_runner.errors import ConfigError

CLASSES = {
    **{"evaluate": Evaluate, "export": Export, "plan": Plan, "predict": Predict},
    **{"search": Search, "simulate": Simulate, "sync": Sync, "train": Train, "verify": Verify},
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """A run of 20 steps."""
    monkeypatch.chdir(tmp_path)
    return validated(Composer().job(["model=simple", "data=linear", "train.steps=20", "tracking=off"]))


def test_the_registry_has_these_classes() -> None:
    assert {name: type(action_named(name)) for name in BUILT_IN} == CLASSES
    assert set(BUILT_IN) <= set(names_of_actions())


@pytest.mark.parametrize(
    ("trait", "names"),
    [
        ("trains", {"train"}),
        ("runs_steps", {"train", "evaluate", "predict", "verify", "search"}),
        ("runs_a_job", {"train", "evaluate", "predict", "export", "verify", "search", "plan", "simulate"}),
        ("goes_on_training", {"train", "verify", "search", "plan", "simulate", "sync"}),
        ("in_fit", {"train", "verify", "plan"}),
        ("in_script", {"train", "search", "plan", "simulate"}),
        ("own_keys", {"evaluate", "predict", "simulate"}),
    ],
)
def test_what_actions_declare(trait: str, names: set[str]) -> None:
    assert {name for name, one in CLASSES.items() if getattr(one, trait)} == names


def test_steps_that_are_done_cannot_be_verified(config: RunConfig) -> None:
    Verify().check_start(config, done_steps=19)
    with pytest.raises(ConfigError, match=f"at step 20, so train.steps=20 .*set train.steps={20 + NEW_STEPS}"):
        Verify().check_start(config, done_steps=20)


def test_what_uses_a_checkpoint_keeps_the_record_of_another_run(config: RunConfig, tmp_path: Path) -> None:
    class Count(UsesCheckpoint):
        pass

    here = dataclasses.replace(config, action="export", run_dir=str(tmp_path))
    Count().begin(here)
    (tmp_path / "config.yaml").write_text("action: export\n")
    Count().begin(here)
    (tmp_path / "config.yaml").write_text("action: train\n")
    with pytest.raises(ConfigError, match="this folder has a run with action=train; omit run_dir or choose another"):
        Count().begin(here)


def test_what_cannot_be_predicted(config: RunConfig, tmp_path: Path) -> None:
    def refusal(outputs: dict[str, str], dataset: Any) -> str:
        planned = SimpleNamespace(single=SimpleNamespace(outputs=outputs), dataset=dataset)
        here = dataclasses.replace(config, action="predict", run_dir=str(tmp_path))
        with pytest.raises(ConfigError) as raised:
            Predict().before_processes(cast(Any, SimpleNamespace(config=here, planned=planned)), cast(Any, None))
        return str(raised.value)

    parts = {"train": {"x": np.arange(3)}, "validation": {"x": np.arange(0)}}
    empty = ArrayDataset(**parts, words_per_example=None, seed=1)
    in_order = SimpleNamespace(share=lambda rank, ranks, replicas: None, validation_size=3)
    assert "action=predict: the model names no outputs; let the model return a dict" in refusal({}, empty)
    assert "read.part=validation: there are no examples to predict" in refusal({"y": "y:0"}, empty)
    assert "read.part=validation: the data is read in order" in refusal({"y": "y:0"}, in_order)
    shuffled = SimpleNamespace(is_in_order=False, validation_size=3)
    assert "does not tell the order of its training examples" in refusal({"y": "y:0"}, shuffled)
    assert not list(tmp_path.glob("predictions"))


def test_sync_runs_no_job(config: RunConfig) -> None:
    with pytest.raises(ConfigError, match="runs no job; use this action alone, as in action=sync run_dir=runs/first"):
        Sync().begin(config)


def summary(**fields: Any) -> RunSummary:
    return RunSummary(**{"status": "finished", "action": "verify", "comm": "mpi", "model": "m", "workers": 2} | fields)


def test_what_verify_tells_at_the_end() -> None:
    equal = summary(steps=20, first_step=15, verification=VerifySummary(verified=True, max_difference=3e-9))
    told = Verify().told_at_end(equal, Path("run"))
    assert told.startswith("verified: after 5 steps from step 15, every variable matches")
    assert "the largest difference is 3e-09 of the variable's change; run" in told
    repeated = VerifySummary(verified=True, max_difference=0.0, differ_unmerged=("table", "other"))
    assert "differ in 2 variables" in Verify().told_at_end(summary(steps=5, verification=repeated), Path("run"))


def test_what_search_tells_at_the_end() -> None:
    found = SearchSummary((2, 4, 8), (9.0, 5.0, 7.0), (0.1, 0.1, 0.1), 4, 1.0, 2.0, 3.0)
    told = Search().told_at_end(summary(action="search", search=found), Path("run"))
    assert told.splitlines() == [
        "found: 4 partitions; run",
        "to use this number without a search: partition=fixed partition.num=4 partition.cut=by_bytes",
    ]


def test_an_action_that_lacks_a_method_is_told_which() -> None:
    class Mine(Action):
        pass

    with pytest.raises(ConfigError, match="Mine does not define the method «run_command»; define it"):
        Mine().run_command(None)  # type: ignore[arg-type]
