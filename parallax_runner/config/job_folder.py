"""Names the folder of each job of a sweep after the values that are swept over.

Not after the job's number: a sweep that is started again with another list, or an Optuna study that goes on, counts
anew, and a job must never find another one's checkpoint in its folder.
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
    """Makes `${job_folder:…}` known to OmegaConf in this process; `conf/config.yaml` uses it."""
    OmegaConf.register_new_resolver(RESOLVER, job_folder, replace=True)


def job_folder(override_dirname: str) -> str:
    """`comm=mpi,train.seed=1` becomes `comm-mpi+train.seed-1`, which needs no quotes on a command line.

    Of a path only its last part is shown. A name that no longer says everything ends in a hash of what it was.
    """
    marked = re.sub(r"(^|,)\++", r"\1", override_dirname).replace("=", "-").replace(",", "+")
    shown = re.sub(r"-[^+]*/(?=[^+/])", "-", marked)
    shown = re.sub(r"[^\w.+-]", "_", shown, flags=re.ASCII)
    if shown == marked and len(shown) <= MAX_CHARS:
        return shown or NOTHING_SWEPT
    digest = hashlib.sha256(override_dirname.encode()).hexdigest()[:HASH_CHARS]
    return f"{shown[: MAX_CHARS - HASH_CHARS - 1]}-{digest}"


def leave_out_fixed(overrides: Sequence[Override], swept_by_sweeper: Collection[str]) -> str | None:
    """The override that keeps what all jobs have in common out of their names; None if the user decides it.

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
