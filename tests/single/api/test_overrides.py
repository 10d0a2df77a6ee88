"""A `Config` says what the command line would be told."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import DictConfig

import parallax_runner as parallax
from parallax_runner.api.overrides import overrides_of
from parallax_runner.config.compose import Composer, resolve
from parallax_runner.errors import ConfigError


def composed(config: parallax.Config, **options: Any) -> DictConfig:
    asked = {"resource_info": None, "sync": True, "has_partitioner": False} | options
    return resolve(Composer().job([*overrides_of(config, **asked), "model.path=train.py"]))


def test_defaults_are_the_originals() -> None:
    config = composed(parallax.Config())
    assert config.comm.name == "hybrid" and config.comm.sync and not config.comm.average_sparse
    assert config.partition.name == "off" and config.redirect_path is None and config.train.steps is None


@pytest.mark.parametrize(("option", "comm"), [("PS", "ps"), ("mpi", "mpi"), (("HYBRID",), "hybrid")])
def test_run_option(option: Any, comm: str) -> None:
    assert composed(parallax.Config(run_option=option)).comm.name == comm


def test_a_wrong_run_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected PS, MPI or HYBRID"):
        composed(parallax.Config(run_option="AR"))


def test_what_is_set_is_said() -> None:
    config = parallax.Config(average_sparse=True, redirect_path="a b", search_partitions=True, tracking=False)
    config.communication_config = parallax.CommunicationConfig(
        parallax.PSConfig(replicate_variables=False), parallax.MPIConfig(mpirun_options="--x 'a,b' $HOME")
    )
    config.ckpt_config = parallax.CheckPointConfig("it's", save_ckpt_steps=3)
    config.profile_config = parallax.ProfileConfig(profile_range=(2, 4), profile_worker=1)
    told = composed(config, sync=False, has_partitioner=True, resource_info=["localhost: 0,1"])
    assert told.comm.average_sparse and not told.comm.sync and not told.tracking.enabled
    assert told.redirect_path.endswith("/a b") and told.partition.name == "search"
    assert told.comm.mpi.mpirun_options == "--x 'a,b' $HOME"
    assert told.ckpt.dir.endswith("/it's") and (told.ckpt.save_steps, told.ckpt.save_secs) == (3, None)
    assert (told.profile.name, list(told.profile.range), told.profile.worker) == ("range", [2, 4], 1)
    assert list(told.cluster.resource_info) == ["localhost: 0,1"]


def test_save_ckpt_secs() -> None:
    config = parallax.Config(ckpt_config=parallax.CheckPointConfig(save_ckpt_secs=7))
    assert composed(config).ckpt.save_secs == 7


def test_no_search_without_a_partitioner() -> None:
    assert composed(parallax.Config(search_partitions=True)).partition.name == "off"


def test_profile_steps_and_range_are_never_both() -> None:
    with pytest.raises(ConfigError, match="one of the two"):
        composed(parallax.Config(profile_config=parallax.ProfileConfig(profile_steps=[1], profile_range=(1, 2))))
