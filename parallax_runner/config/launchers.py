"""Finds the launcher that `cluster.launcher` names."""

from typing import Any

from parallax_runner.config import rendezvous, slurm_allocation
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.explain import refusal
from parallax_runner.config.named_class import find_class, known_names
from parallax_runner.config.origins import Origins
from parallax_runner.config.resource_info import read_hosts
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.suggestions import nearest

KEY = "cluster.launcher"
AUTO = "auto"
BUILT_IN = {
    "local": "parallax_runner.launch.launchers.local.Local",
    "hosts": "parallax_runner.launch.launchers.hosts.OverHosts",
    slurm_allocation.LAUNCHER: "parallax_runner.launch.launchers.slurm.Slurm",
    rendezvous.LAUNCHER: "parallax_runner.launch.launchers.manual.Manual",
}
ENTRY_POINTS = "parallax_runner.launchers"
BASE = "parallax_runner.launch.launchers.launcher.Launcher"


def launcher_name(config: RunConfig) -> str:
    """Returns the name of the launcher, never `auto`."""
    name: str = config.cluster.launcher
    if name != AUTO:
        return name
    return "hosts" if names_other_hosts(config) else "local"


def launcher_class(config: RunConfig) -> Any:
    """Returns the class of the launcher. Raises LookupError, with the reason as a sentence, if there is no such
    class."""
    return find_class(launcher_name(config), built_in=BUILT_IN, group=ENTRY_POINTS, base=BASE, other_names=[AUTO])


def check_launcher(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if the launcher does not exist or cannot start this run."""
    name = config.cluster.launcher
    try:
        found = launcher_class(config)
    except LookupError as error:
        known = [AUTO, *known_names(BUILT_IN, ENTRY_POINTS)]
        near = None if "." in name else nearest(name, known)
        hint = None if near is None else f"{KEY}={near}"
        raise refusal(KEY, origins, str(error), value=name, hint=hint) from error
    reason = None if mode_of(config.comm).is_one_process else found.unfit(config, config.comm.name)
    if reason is not None:
        raise refusal(KEY, origins, reason, value=name)


def names_other_hosts(config: RunConfig) -> bool:
    """Returns whether `cluster.resource_info` names a machine other than this one."""
    lines = config.cluster.resource_info
    if lines is None:
        return False
    return not all(host.is_here for host in read_hosts(lines))
