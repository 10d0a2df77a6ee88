"""The keys of group `update`: how the optimizer of a TensorFlow 1 graph updates variables."""

import math

from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig

CLIPS = ("clip_norm", "clip_value", "global_clip_norm")
# The keys of a decay, with the decays that use them.
USED_BY = {
    "decay_steps": ("linear", "cosine", "exponential"),
    "decay_rate": ("exponential",),
    "end_fraction": ("linear", "cosine"),
}


def check_update(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for keys that contradict each other, or that have no effect or no value."""
    _check_finite(config, origins)
    _check_clips(config, origins)
    _check_decay(config, origins)
    _check_rate(config, origins)
    if config.update.exclude_from_weight_decay and config.update.weight_decay is None:
        reason = "no variable decays; set update.weight_decay, or remove this key"
        raise refusal("update.exclude_from_weight_decay", origins, reason)


def _check_finite(config: RunConfig, origins: Origins) -> None:
    update = config.update
    values = {f"update.{name}": getattr(update, name) for name in (*CLIPS, "weight_decay")}
    values |= {f"update.schedule.{name}": getattr(update.schedule, name) for name in ("decay_rate", "end_fraction")}
    for key, value in values.items():
        if value is not None and not math.isfinite(value):
            raise refusal(key, origins, "expected a finite number", value=value)


def _check_clips(config: RunConfig, origins: Origins) -> None:
    chosen = [name for name in CLIPS if getattr(config.update, name) is not None]
    if len(chosen) > 1:
        others = ", ".join(f"update.{name}" for name in chosen[:-1])
        raise refusal(f"update.{chosen[-1]}", origins, f"a gradient is clipped in one way, and {others} is set, too")


def _check_decay(config: RunConfig, origins: Origins) -> None:
    schedule = config.update.schedule
    for name, decays in USED_BY.items():
        value = getattr(schedule, name)
        is_used = schedule.decay in decays
        is_needed = is_used and name != "end_fraction"
        if is_needed and value is None:
            raise refusal(f"update.schedule.{name}", origins, f"update.schedule.decay={schedule.decay} needs this key")
        if value and not is_used:
            needed = " or ".join(decays)
            reason = f"update.schedule.decay={schedule.decay} does not use this key; expected the decay {needed}"
            raise refusal(f"update.schedule.{name}", origins, reason, value=value)


def _check_rate(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if a rate is needed that the group `optimizer` does not have."""
    update, rate = config.update, config.optimizer.get("learning_rate")
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if is_number or not (update.schedule.changes or update.weight_decay is not None):
        return
    key = "update.weight_decay" if update.weight_decay is not None else "update.schedule.decay"
    raise refusal(
        key, origins, "this key needs a number as optimizer.learning_rate, which this optimizer does not have"
    )
