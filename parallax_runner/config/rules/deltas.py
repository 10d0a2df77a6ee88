"""The settings of deltas."""

from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.targets import SCRIPT

KEY = "ckpt.delta_steps"


def check_deltas(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if a delta would have no checkpoint to which it belongs, or if changes cannot be noticed."""
    delta_steps = config.ckpt.delta_steps
    if not config.ckpt.enabled or delta_steps is None:
        return
    reason = _why_not(config) or _why_never(config, delta_steps)
    if reason is not None:
        raise refusal(KEY, origins, reason, value=delta_steps)


def _why_not(config: RunConfig) -> str | None:
    """Returns why the run cannot know what its steps have changed, or None if it can."""
    if config.model["_target_"] == SCRIPT:
        return "a script may change variables outside of its steps, which no delta would have; omit this key"
    if not config.comm.sync:
        return "a delta has the values of one step of all workers, which needs comm.sync=true"
    if config.comm.ps.backup_workers:
        return "a delta has the values of one step of all workers, which needs comm.ps.backup_workers=0"
    if config.partition.name == "search":
        return "a search divides variables anew during the training; choose partition=fixed"
    return None


def _why_never(config: RunConfig, delta_steps: int) -> str | None:
    """Returns why no delta would ever be written, or None if one can be."""
    save_steps = config.ckpt.save_steps
    if save_steps is None and config.ckpt.save_secs is None:
        return "a delta belongs to a checkpoint; set ckpt.save_steps or ckpt.save_secs too"
    if save_steps is not None and save_steps <= delta_steps:
        return f"expected less than ckpt.save_steps={save_steps}, because each checkpoint makes a delta superfluous"
    return None
