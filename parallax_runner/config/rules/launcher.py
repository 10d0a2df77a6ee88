"""The launcher that `cluster.launcher` names, and the address at which `cluster.launcher=manual` waits."""

from parallax_runner.config import launchers, rendezvous
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.explain import refusal
from parallax_runner.config.named_class import known_names
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.suggestions import nearest
from parallax_runner.errors import ConfigError


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


def check_rendezvous(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for an invalid address, or for settings that contradict it."""
    cluster = config.cluster
    if cluster.launcher != rendezvous.LAUNCHER:
        return
    if cluster.rendezvous is None:
        raise refusal(rendezvous.KEY, origins, rendezvous.EXPECTED, value=None)
    try:
        rendezvous.split_address(cluster.rendezvous)
    except ConfigError as error:
        raise refusal(rendezvous.KEY, origins, str(error)) from error
    if cluster.resource_info is not None:
        needed = "under cluster=manual you choose the host of each process; omit this key"
        raise refusal("cluster.resource_info", origins, needed, value=cluster.resource_info)
    if mode_of(config.comm).is_one_process:
        needed = "this mode runs one process, which the driver starts itself"
        raise refusal("comm.name", origins, needed, value=config.comm.name, hint="cluster=local")
