"""Keeps Hydra's global state apart from that of the user's code, which may use Hydra itself."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobRuntime
from hydra.version import VersionBase
from omegaconf.basecontainer import BaseContainer

OF_THE_APPLICATION = (GlobalHydra, HydraConfig, JobRuntime, VersionBase)


@contextmanager
def own_hydra_state() -> Iterator[None]:
    """Within the block, Hydra has a state of its own, as in a process in which no Hydra application runs.

    After the block, Hydra has the state of the user's code again: an initialized `GlobalHydra`, the configuration of
    the running job, the stored configurations and the resolvers of OmegaConf. `Singleton.get_state` is not used,
    because it copies all objects and discards the plugins.
    """
    Plugins.instance()  # registers the plugins, which belong to both states
    instances, resolvers = Singleton._instances, BaseContainer._resolvers
    own = {kind: instance for kind, instance in instances.items() if kind not in OF_THE_APPLICATION}
    # Hydra and its plugins store their configurations only when they are imported, so an empty store would lack them.
    own[ConfigStore] = copy.deepcopy(ConfigStore.instance())
    Singleton._instances = own
    BaseContainer._resolvers = dict(resolvers)
    try:
        yield
    finally:
        Singleton._instances = instances
        BaseContainer._resolvers = resolvers
