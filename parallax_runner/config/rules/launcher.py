"""The launcher that `cluster.launcher` names. The rules of one launcher are in its class."""

from parallax_runner.config import launchers
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.explain import refusal
from parallax_runner.config.named_class import known_names
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.suggestions import nearest


def check_settings(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for settings that contradict the launcher."""
    launchers.declared_by(config.cluster.launcher).check_config(config, origins)


def check_launcher(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if the launcher does not exist or cannot start this run."""
    key, name = launchers.KEY, config.cluster.launcher
    try:
        found = launchers.launcher_class(config)
    except LookupError as error:
        known = [launchers.AUTO, *known_names(launchers.BUILT_IN, launchers.ENTRY_POINTS)]
        near = None if "." in name else nearest(name, known)
        hint = None if near is None else f"{key}={near}"
        raise refusal(key, origins, str(error), value=name, hint=hint) from error
    if mode_of(config.comm).is_one_process:  # the driver starts the only process itself
        return
    reason = found.unfit(config, config.comm.name)
    if reason is not None:
        raise refusal(key, origins, reason, value=name)
