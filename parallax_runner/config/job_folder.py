"""Names the folder of each job of a sweep after the job's swept values.

The job's number is not used, because it changes when a sweep is restarted with a different list of values or an Optuna
study is resumed. The folder of a job must never contain another job's checkpoint.
"""

import hashlib
import re
from collections.abc import Collection, Sequence

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

RESOLVER = "job_folder"
MAX_CHARS = 100
HASH_CHARS = 8
NOTHING_SWEPT = "job"
EXCLUDE_KEYS = "hydra.job.config.override_dirname.exclude_keys"


def register() -> None:
    """Registers the resolver `${job_folder:…}`, which `conf/config.yaml` uses, with OmegaConf in this process."""
    OmegaConf.register_new_resolver(RESOLVER, job_folder, replace=True)


def job_folder(override_dirname: str) -> str:
    """Returns a folder name that needs no quotes on a command line, for example `comm-mpi+train.seed-1` for
    `comm=mpi,train.seed=1`.

    Paths are shortened to their last component. A shortened or changed name ends in a hash of the original.
    """
    marked = re.sub(r"(^|,)\++", r"\1", override_dirname).replace("=", "-").replace(",", "+")
    shown = re.sub(r"-[^+]*/(?=[^+/])", "-", marked)
    shown = re.sub(r"[^\w.+-]", "_", shown, flags=re.ASCII)
    if shown == marked and len(shown) <= MAX_CHARS:
        return shown or NOTHING_SWEPT
    digest = hashlib.sha256(override_dirname.encode()).hexdigest()[:HASH_CHARS]
    return f"{shown[: MAX_CHARS - HASH_CHARS - 1]}-{digest}"


def leave_out_fixed(overrides: Sequence[Override], swept_by_sweeper: Collection[str]) -> str | None:
    """Returns the override that removes values shared by all jobs from the folders' names. Returns None if the user
    sets this override.

    `swept_by_sweeper` are the keys of `hydra.sweeper.params`.
    """
    if any(override.get_key_element().lstrip("+") == EXCLUDE_KEYS for override in overrides):
        return None
    fixed = [
        override.key_or_group
        for override in overrides
        if not override.is_sweep_override()
        and not override.is_hydra_override()
        and override.key_or_group not in swept_by_sweeper
    ]
    return f"{EXCLUDE_KEYS}=[{','.join(dict.fromkeys(fixed))}]"
