"""Learning rates are not negative. Zero is one: a step then computes all and changes nothing, as a warm-up begins."""

import math
from collections.abc import Mapping
from typing import Any

from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig

NAME = "learning_rate"  # of the optimizers of TensorFlow and Keras; where it is text, it names a variable


def check_learning_rates(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError where the optimizer's or the model's is negative, infinite or not a number."""
    groups: dict[str, Mapping[str, Any]] = {"optimizer": config.optimizer, "model": config.model}
    for group, content in groups.items():
        rate = content.get(NAME)
        if isinstance(rate, int | float) and not (rate >= 0 and math.isfinite(rate)):
            raise refusal(f"{group}.{NAME}", origins, "expected a finite number, at least 0", value=rate)
