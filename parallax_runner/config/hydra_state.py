"""Keeps Hydra's global state apart from that of the user's code, which may use Hydra itself."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from omegaconf.basecontainer import BaseContainer


@contextmanager
def own_hydra_state() -> Iterator[None]:
    """Within the block, Hydra has a state of its own, as in a process in which no Hydra application runs.

    After the block, Hydra has the state of the user's code again: an initialized `GlobalHydra`, the configuration of
    the running job, the stored configurations and the resolvers of OmegaConf. `Singleton.get_state` is not used,
    because it copies all objects and discards the plugins.
    """
    plugins, store = Plugins.instance(), ConfigStore.instance()  # created now, they belong to both states
    instances, resolvers = Singleton._instances, BaseContainer._resolvers
    # The store already has the configurations of Hydra and its plugins, which are stored only when they are imported.
    Singleton._instances = {Plugins: plugins, ConfigStore: copy.deepcopy(store)}
    BaseContainer._resolvers = dict(resolvers)
    try:
        yield
    finally:
        Singleton._instances = instances
        BaseContainer._resolvers = resolvers
