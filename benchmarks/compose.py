"""Composes the configuration for overrides in this process, as the command line does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def compose(overrides: Sequence[str]) -> Any:
    """Returns the composed configuration."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    from parallax_runner.config.compose import CONFIG_NAME, VERSION_BASE, register_schema
    from parallax_runner.config.location import conf_dir

    register_schema()
    with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
        return hydra_compose(CONFIG_NAME, list(overrides))
