"""The configuration as a file: resolved once by the driver, read by every worker and server. Needs no Hydra."""

import os
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from parallax_runner.config.schema import RunConfig
from parallax_runner.files.whole import write_whole

FILE_NAME = "config.yaml"
# What `conf/model/script.yaml` names in place of a model's function.
SCRIPT = "parallax_runner.api.script.start_it_plainly"


def freeze(config: DictConfig, run_dir: str | os.PathLike[str]) -> Path:
    """Writes `run_dir/config.yaml` with every interpolation resolved, and returns its path.

    The file appears whole or not at all: a worker may look for it at any time.
    """
    folder = Path(run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    write_whole(path, OmegaConf.to_yaml(config, resolve=True))
    return path


def load(run_dir: str | os.PathLike[str]) -> DictConfig:
    """Reads `run_dir/config.yaml` back, typed by the schema and read-only."""
    config = OmegaConf.merge(OmegaConf.structured(RunConfig), OmegaConf.load(Path(run_dir) / FILE_NAME))
    assert isinstance(config, DictConfig)
    OmegaConf.set_struct(config, True)
    OmegaConf.set_readonly(config, True)
    return config


def runs_script(run_dir: str | os.PathLike[str]) -> bool:
    """Whether the run is that of a script that called parallel_run."""
    return bool(load(run_dir).model._target_ == SCRIPT)
