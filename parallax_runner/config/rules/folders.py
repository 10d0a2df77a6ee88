"""The folders and files that a run writes or reads."""

import os

from parallax_runner.config.actions import action_of
from parallax_runner.config.explain import refusal
from parallax_runner.config.keras_files import is_keras_file
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.files.access import unwritable


def check_folders(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if a folder of the run cannot be written, as far as this can be checked without writing."""
    ckpt = config.ckpt
    if ckpt.enabled and ckpt.dir is None:
        raise refusal("ckpt.dir", origins, "expected a folder", hint="ckpt=off, or ckpt.dir=${run_dir}/ckpt")
    folders = {
        "hydra.run.dir" if "hydra.run.dir" in origins.given() else "run_dir": config.run_dir,
        "ckpt.dir": ckpt.dir if ckpt.enabled and action_of(config).trains else None,
        "profile.dir": config.profile.dir,
        "redirect_path": config.redirect_path,
        "export_graph_path": config.export_graph_path,
    }
    for key, folder in folders.items():
        reason = None if folder is None else unwritable(folder)
        if reason is not None:
            raise refusal(key, origins, reason, value=folder)


def check_resume(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if the checkpoint to resume from does not exist."""
    resume = config.ckpt.resume
    if resume in ("auto", "never"):
        return
    if not _has_files(resume):
        raise refusal("ckpt.resume", origins, "expected auto, never, or a path that exists", value=resume)
    if is_keras_file(resume) and action_of(config).goes_on_training:
        needed = "a file of Keras does not say where its training is; begin a new run with ckpt.warm_start instead"
        raise refusal("ckpt.resume", origins, needed, value=resume)


def check_warm_start(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if the checkpoint of a warm start does not exist, or if the run resumes from another one."""
    path, resume = config.ckpt.warm_start, config.ckpt.resume
    if path is None:
        return
    if resume not in ("auto", "never"):
        needed = f"the run already starts from ckpt.resume={resume}; omit one of the two"
        raise refusal("ckpt.warm_start", origins, needed, value=path)
    if not _has_files(path):
        raise refusal("ckpt.warm_start", origins, "expected a path that exists", value=path)


def _has_files(checkpoint: str) -> bool:
    """Returns whether there is a folder, or a file of a checkpoint, at a path."""
    return any(os.path.lexists(name) for name in (checkpoint, f"{checkpoint}.index", f"{checkpoint}.json"))
