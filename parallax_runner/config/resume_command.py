"""Builds the command that resumes a run: the command that started the run, with the same run directory."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from parallax_runner.config.compose import CONFIG_NAME
from parallax_runner.config.hydra_quotes import quoted
from parallax_runner.config.location import conf_dir
from parallax_runner.config.origins import readable
from parallax_runner.config.running_job import is_of_call
from parallax_runner.files.credentials import without_password

# Keys whose values are replaced by the run's own folder and its checkpoints.
_FOLDER_KEYS = ("hydra.run.dir",)
_RESUME_KEY = "ckpt.resume"
_POSITION_KEY = "ckpt.position"  # a checkpoint of the run itself already has the position in the run's data


def resume_command(run_dir: Path, *, has_own_checkpoint: bool, resume: str) -> str | None:
    """Returns the command to type in the folder where the run was started. Returns None if Hydra did not start the run,
    but a script, which may use Hydra for its own configuration.

    A job of a sweep is resumed as a single run with the job's overrides. `resume` is the run's `ckpt.resume`. If the
    run has its own checkpoints, it continues from the newest checkpoint in its folder. Otherwise, it starts again from
    `resume`.
    """
    if is_of_call() or not HydraConfig.initialized():
        return None
    overrides = _of_single_run(HydraConfig.get())
    if has_own_checkpoint:
        overrides = _from_own_checkpoint(overrides, resume)
    words = ["python", "-m", "parallax_runner", *_options(), *overrides, f"hydra.run.dir={quoted(readable(run_dir))}"]
    return without_password(shlex.join(words))


def _of_single_run(hydra: HydraConf) -> list[str]:
    """Returns the overrides that start the same job as a single run."""
    overrides, of_hydra = _as_written(hydra.overrides.task), _as_written(hydra.overrides.hydra)
    # Hydra itself adds hydra.mode if neither a file nor the user sets it. An experiment can set the mode of a sweep.
    keys = [_key(one) for one in of_hydra]
    if hydra.mode != RunMode.MULTIRUN:
        overrides += [one for one in of_hydra if _key(one) not in (*_FOLDER_KEYS, "hydra.mode")]
        says_run = "hydra.mode" in keys and hydra.runtime.choices.get("experiment") is not None
    else:
        overrides += [one for one in of_hydra if _key(one) == "hydra.searchpath"]
        says_run = "hydra.mode" not in keys
    return [*overrides, "hydra.mode=RUN"] if says_run else overrides


def _from_own_checkpoint(overrides: Sequence[str], resume: str) -> list[str]:
    """Returns the overrides of a run that continues from its own newest checkpoint."""
    given = [one for one in overrides if _key(one) == _RESUME_KEY]
    others = [one for one in overrides if _key(one) not in (_RESUME_KEY, _POSITION_KEY)]
    if resume == "auto" or given:
        return others
    return [*others, f"{_RESUME_KEY}=auto"]


def _as_written(overrides: Any) -> list[str]:
    """Returns overrides with unresolved interpolations, because their values can differ in another run."""
    written: Any = OmegaConf.to_container(overrides, resolve=False)
    return [str(one) for one in written]


def _options() -> Iterable[str]:
    hydra = HydraConfig.get()
    folders = {source.provider: source.path for source in hydra.runtime.config_sources}
    if "command-line" in folders:
        yield f"--config-dir={readable(Path(folders['command-line']))}"
    if folders.get("main", str(conf_dir())) != str(conf_dir()):
        yield f"--config-path={folders['main']}"
    if hydra.job.config_name not in (None, CONFIG_NAME):
        yield f"--config-name={hydra.job.config_name}"


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")
