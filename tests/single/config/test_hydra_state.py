"""Hydra's state of the user's code, and the state in which this project composes its configuration."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hydra
import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from omegaconf import OmegaConf

from parallax_runner.config.compose import Composer, resolve
from parallax_runner.config.hydra_state import OF_THE_APPLICATION, own_hydra_state
from parallax_runner.config.origins import Origins
from parallax_runner.config.resume_command import resume_command
from parallax_runner.config.running_job import job_of_call
from parallax_runner.errors import ConfigError


@dataclass
class Settings:
    epochs: int = 3
    double: int = "${double:4}"  # type: ignore[assignment]


@pytest.fixture
def application() -> Iterator[None]:
    """A Hydra application whose configuration has the same name as this project's."""
    before, store = Singleton._instances, copy.copy(ConfigStore.instance())
    store.repo = copy.deepcopy(store.repo)  # stored configurations would stay in a dict of a group
    Singleton._instances = {kind: one for kind, one in before.items() if kind not in OF_THE_APPLICATION}
    Singleton._instances[ConfigStore] = store
    OmegaConf.register_new_resolver("double", lambda number: 2 * number)
    try:
        ConfigStore.instance().store(name="config", node=Settings)
        ConfigStore.instance().store(group="model", name="lm", node=Settings)
        with hydra.initialize(version_base=None):
            HydraConfig.instance().set_config(hydra.compose("config", return_hydra_config=True))
            yield
    finally:
        OmegaConf.clear_resolver("double")
        Singleton._instances = before


@pytest.mark.usefixtures("application")
def test_both_states() -> None:
    for line in ("train.steps=7", "train.stepz=7", "train.steps=8"):
        try:
            with own_hydra_state():
                assert not HydraConfig.initialized() and not GlobalHydra.instance().is_initialized()
                assert resolve(Composer().job([line])).train.steps in (7, 8)
        except ConfigError as error:
            assert "train.stepz=7" in str(error)
        assert HydraConfig.get().job.config_name == "config" and GlobalHydra.instance().is_initialized()
        composed = hydra.compose("config", overrides=["epochs=4"])
        assert (composed.epochs, composed.double) == (4, 8)


@pytest.mark.usefixtures("application")
def test_the_application_cannot_resume_a_run_of_fit() -> None:
    assert resume_command(Path("out"), has_own_checkpoint=False, resume="auto") is not None
    with job_of_call(Origins([], [])):
        assert resume_command(Path("out"), has_own_checkpoint=False, resume="auto") is None
