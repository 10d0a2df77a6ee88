"""Finds the launcher that `cluster.launcher` names."""

from typing import Any

from parallax_runner.config.named_class import find_class
from parallax_runner.config.resource_info import read_hosts
from parallax_runner.config.schema import RunConfig

KEY = "cluster.launcher"
AUTO = "auto"
BUILT_IN = {
    "local": "parallax_runner.launch.launchers.local.Local",
    "hosts": "parallax_runner.launch.launchers.hosts.OverHosts",
    "slurm": "parallax_runner.launch.launchers.slurm.slurm_launcher.Slurm",
    "manual": "parallax_runner.launch.launchers.manual.manual_launcher.Manual",
    "kubernetes": "parallax_runner.launch.launchers.kubernetes.kubernetes_launcher.Kubernetes",
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
    return _find(launcher_name(config))


def declared_by(name: str) -> Any:
    """Returns the class whose attributes and class methods tell what the rules and the driver ask about the launcher
    that `cluster.launcher` names. `auto` chooses between `local` and `hosts`, which declare the same, except that only
    `hosts` changes its size. A name without a class declares nothing, because a rule of its own refuses it."""
    try:
        return _find("hosts" if name == AUTO else name)
    except LookupError:
        return _find(BASE)


def is_chosen(name: str) -> bool:
    """Returns whether the user has chosen the launcher, whose name is `cluster.launcher`."""
    return name != AUTO


def owners_of_key(key: str) -> list[str]:
    """Returns the names of the built-in launchers that alone use a key of `cluster`. Returns an empty list if all
    launchers use the key."""
    return [name for name in BUILT_IN if key in _find(name).own_keys]


def _find(name: str) -> Any:
    return find_class(name, built_in=BUILT_IN, group=ENTRY_POINTS, base=BASE, other_names=[AUTO])


def names_other_hosts(config: RunConfig) -> bool:
    """Returns whether `cluster.resource_info` names a machine other than this one."""
    lines = config.cluster.resource_info
    if lines is None:
        return False
    return not all(host.is_here for host in read_hosts(lines))
