"""Keeps Hydra's global state apart from that of the user's code, which may use Hydra itself."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobRuntime
from hydra.version import VersionBase
from omegaconf.basecontainer import BaseContainer

OF_THE_APPLICATION = (GlobalHydra, HydraConfig, JobRuntime, VersionBase)
HYDRA = "hydra"  # the group that contains Hydra's own configurations and those of its plugins, and Hydra's provider


@contextmanager
def own_hydra_state() -> Iterator[None]:
    """Within the block, Hydra has a state of its own, as in a process in which no Hydra application runs.

    After the block, Hydra has the state of the user's code again: an initialized `GlobalHydra`, the configuration of
    the running job, the stored configurations and the resolvers of OmegaConf. `Singleton.get_state` is not used,
    because it copies all objects, and discards the plugins, which then have to be found again.
    """
    Plugins.instance()  # registers the plugins, which belong to both states
    instances, resolvers = Singleton._instances, BaseContainer._resolvers
    own: dict[Any, Any] = {kind: one for kind, one in instances.items() if kind not in OF_THE_APPLICATION}
    own[ConfigStore] = _store_of_hydra(ConfigStore.instance())
    Singleton._instances = own
    BaseContainer._resolvers = dict(resolvers)
    try:
        yield
    finally:
        Singleton._instances = instances
        BaseContainer._resolvers = resolvers


def _store_of_hydra(store: ConfigStore) -> ConfigStore:
    """Returns a store that lacks the configurations of the user's code. Hydra would merge this project's configuration
    `config` with a stored configuration of the same name, a name that many applications use.

    The configurations of Hydra and its plugins remain. They are stored only once, when their modules are imported.
    """
    own = copy.copy(store)  # to call the class would return the same object
    own.repo = {name: stored for name, stored in store.repo.items() if name == HYDRA or _is_of_hydra(stored)}
    return own


def _is_of_hydra(stored: Any) -> bool:
    return isinstance(stored, ConfigNode) and stored.provider == HYDRA
