"""Checks that learning rates are not negative. Zero is allowed, because a warm-up can begin with zero."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig

# Arguments of TensorFlow and Keras optimizers and schedules, such as initial_learning_rate. learning_rate_power
# is not a rate.
NAME = re.compile(r"(.*_)?(learning_rate|lr)")


def check_learning_rates(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if the learning rate of the optimizer or model is negative, infinite or NaN."""
    groups: dict[str, Mapping[str, Any]] = {"optimizer": config.optimizer, "model": config.model}
    for group, content in groups.items():
        for key, rate in _rates(group, content):
            if not (rate >= 0 and math.isfinite(rate)):
                raise refusal(key, origins, "expected a finite number, at least 0", value=rate)


def _rates(key: str, content: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields the keys and values of all rates, including the rates of a schedule within an optimizer. Skips strings,
    which are names of variables."""
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _rates(f"{key}.{name}", value)
        elif NAME.fullmatch(str(name)) and isinstance(value, int | float):
            yield f"{key}.{name}", value
