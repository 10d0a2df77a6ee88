"""Checks that learning rates are not negative. Zero is allowed, because a warm-up can begin with zero."""

import math
from collections.abc import Mapping
from typing import Any

from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig

NAME = "learning_rate"  # an argument of TensorFlow and Keras optimizers; if it is a string, it names a variable


def check_learning_rates(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if the learning rate of the optimizer or model is negative, infinite or NaN."""
    groups: dict[str, Mapping[str, Any]] = {"optimizer": config.optimizer, "model": config.model}
    for group, content in groups.items():
        rate = content.get(NAME)
        if isinstance(rate, int | float) and not (rate >= 0 and math.isfinite(rate)):
            raise refusal(f"{group}.{NAME}", origins, "expected a finite number, at least 0", value=rate)
