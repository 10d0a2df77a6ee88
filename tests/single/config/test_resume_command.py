import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.conf import ConfigSourceInfo
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import open_dict, read_write

from parallax_runner.config.compose import Composer
from parallax_runner.config.resume_command import resume_command


@pytest.fixture(autouse=True)
def hydra_config() -> Iterator[HydraConfig]:
    settings = HydraConfig.instance()
    before = settings.cfg
    yield settings
    settings.cfg = before


def command(
    hydra_config: HydraConfig, *lines: str, own: bool = True, resume: str = "auto", multirun: bool = False
) -> str:
    config = Composer().job(lines).config
    if multirun:
        with read_write(config), open_dict(config):
            config.hydra.mode = RunMode.MULTIRUN
    hydra_config.set_config(config)
    said = resume_command(Path("runs/a").absolute(), has_own_checkpoint=own, resume=resume)
    assert said is not None
    return said


def test_the_same_overrides_in_the_same_folder(hydra_config: HydraConfig) -> None:
    assert command(hydra_config, "model=simple", "comm=mpi", "hydra.run.dir=elsewhere") == (
        "python -m parallax_runner model=simple comm=mpi hydra.run.dir=runs/a"
    )


def test_words_are_quoted_for_the_shell(hydra_config: HydraConfig) -> None:
    line = "+tracking.tags.why='a b; $HOME'"
    said = command(hydra_config, line)
    assert line in shlex.split(said)


def test_interpolations_stay_what_they_are(hydra_config: HydraConfig) -> None:
    assert "model=lm" in command(hydra_config, "model=lm", "data.seed=${train.seed}")
    assert "data.seed=${train.seed}" in shlex.split(command(hydra_config, "model=lm", "data.seed=${train.seed}"))


def test_its_own_checkpoint_comes_before_the_one_it_began_from(hydra_config: HydraConfig) -> None:
    assert "ckpt.resume" not in command(hydra_config, "ckpt.resume=/some/run", resume="/some/run")
    assert "ckpt.resume=/some/run" in command(hydra_config, "ckpt.resume=/some/run", own=False, resume="/some/run")
    both = ("ckpt.resume=/some/run", "ckpt.position=start")
    assert "ckpt.position" not in command(hydra_config, *both, resume="/some/run")
    assert "ckpt.position=start" in command(hydra_config, *both, own=False, resume="/some/run")
    # Said by a file of the configuration.
    assert "ckpt.resume=auto" in command(hydra_config, resume="never")


def test_a_job_of_a_sweep_becomes_a_run(hydra_config: HydraConfig) -> None:
    lines = ("model=simple", "comm=mpi", "hydra.sweep.dir=sweep", "hydra.sweep.subdir=${hydra.job.num}")
    assert command(hydra_config, *lines, "hydra.mode=MULTIRUN", multirun=True) == (
        "python -m parallax_runner model=simple comm=mpi hydra.run.dir=runs/a"
    )


def test_what_a_file_calls_a_sweep_goes_on_as_a_run(hydra_config: HydraConfig) -> None:
    """Without `-m` Hydra adds no mode of its own."""
    said = command(hydra_config, "experiment=lm_modes", "comm=mpi", "hydra.sweep.dir=sweep", multirun=True)
    assert said == "python -m parallax_runner experiment=lm_modes comm=mpi hydra.mode=RUN hydra.run.dir=runs/a"
    alone = command(hydra_config, "experiment=lm_modes", "hydra.mode=RUN")
    assert alone == "python -m parallax_runner experiment=lm_modes hydra.mode=RUN hydra.run.dir=runs/a"


def test_another_configuration_folder_is_kept(hydra_config: HydraConfig, tmp_path: Path) -> None:
    config = Composer(config_dir=str(tmp_path)).job(["model=simple"]).config
    with read_write(config), open_dict(config):
        config.hydra.runtime.config_sources = [
            ConfigSourceInfo(path=str(tmp_path), schema="file", provider="command-line")
        ]
    hydra_config.set_config(config)
    said = resume_command(tmp_path / "it's here", has_own_checkpoint=True, resume="auto")
    assert said is not None
    words = shlex.split(said)
    assert f"--config-dir={tmp_path}" in words
    folder = words[-1].removeprefix("hydra.run.dir=")
    assert folder == "'" + f"{tmp_path}/it\\'s here" + "'"


def test_without_hydra_there_is_no_command(hydra_config: HydraConfig) -> None:
    hydra_config.cfg = None
    assert resume_command(Path(os.curdir), has_own_checkpoint=False, resume="auto") is None
