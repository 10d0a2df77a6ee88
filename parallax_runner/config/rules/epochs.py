"""Checks the settings of a run with epochs. Between epochs, all ranks wait for a decision by callbacks or
`train.patience`."""

from parallax_runner.config.explain import refusal
from parallax_runner.config.frozen import FIT, has_epochs, is_of_script
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig


def check_epochs(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if ranks cannot wait for each other, or if the values that the decision needs are missing."""
    _check_objective(config, origins)
    _check_patience(config, origins)
    if not has_epochs(config):
        return
    who = "fit" if config.model["_target_"] == FIT else "train.patience"
    if not config.comm.sync:
        needed = f"with {who} all workers end at the same step, which needs comm.sync=true"
        raise refusal("comm.sync", origins, needed, value=False)
    if config.comm.ps.backup_workers:
        needed = f"with {who} all workers end at the same step; omit this key"
        raise refusal("comm.ps.backup_workers", origins, needed, value=config.comm.ps.backup_workers)
    if config.partition.name == "search":
        needed = f"with {who} the plan cannot change; search in a separate run, or choose partition=fixed"
        raise refusal("partition.name", origins, needed, value="search")


def _check_objective(config: RunConfig, origins: Origins) -> None:
    train = config.train
    if train.direction is not None and train.objective is None:
        needed = "this key needs train.objective, the name of a metric"
        raise refusal("train.direction", origins, needed, value=train.direction)


def _check_patience(config: RunConfig, origins: Origins) -> None:
    train = config.train
    if train.patience is None:
        return
    if is_of_script(config):
        needed = "the script itself decides when training ends; pass keras.callbacks.EarlyStopping to fit"
        raise refusal("train.patience", origins, needed, value=train.patience)
    if train.validate_steps is None:
        needed = "patience counts validations and needs train.validate_steps, the steps between two validations"
        raise refusal("train.patience", origins, needed, value=train.patience)
