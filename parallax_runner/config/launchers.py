"""Finds the launcher that `cluster.launcher` names."""

from typing import Any

from parallax_runner.config import rendezvous, slurm_allocation
from parallax_runner.config.named_class import find_class
from parallax_runner.config.resource_info import read_hosts
from parallax_runner.config.schema import RunConfig

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


def names_other_hosts(config: RunConfig) -> bool:
    """Returns whether `cluster.resource_info` names a machine other than this one."""
    lines = config.cluster.resource_info
    if lines is None:
        return False
    return not all(host.is_here for host in read_hosts(lines))
