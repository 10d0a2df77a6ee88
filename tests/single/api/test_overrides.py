"""A `Config` says what the command line would be told."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

import parallax_runner as parallax
from parallax_runner.api.overrides import overrides_of, value_of
from parallax_runner.config.compose import Composer, resolve
from parallax_runner.config.frozen import plain
from parallax_runner.config.schema import PsConfig, RunConfig
from parallax_runner.config.validate import validate
from parallax_runner.errors import ConfigError


def composed(config: parallax.Config, **options: Any) -> RunConfig:
    asked = {"resource_info": None, "sync": True, "has_partitioner": False} | options
    job = Composer().job([*overrides_of(config, **asked), "model.path=train.py"])
    return validate(resolve(job), job.origins)


def test_defaults_are_the_originals() -> None:
    config = composed(parallax.Config())
    assert config.comm.name == "hybrid" and config.comm.sync and not config.comm.average_sparse
    assert config.cluster.soft_placement
    assert config.partition.name == "off" and config.redirect_path is None and config.train.steps is None


def test_the_original_s_own_defaults_can_be_composed_in_every_mode() -> None:
    """Its PSConfig has all of its options on."""
    assert parallax.PSConfig() == parallax.PSConfig("grpc", True, True, True, True)
    for option in ("PS", "MPI", "HYBRID"):
        composed(parallax.Config(run_option=option))
    assert not composed(parallax.Config(run_option="PS"), sync=False).comm.sync


def test_a_default_gives_way_to_backup_workers() -> None:
    config = parallax.Config(run_option="PS", overrides=["cluster.workers=2", "comm.ps.backup_workers=1"])
    assert not composed(config).comm.ps.replicate_variables
    assert composed(
        parallax.Config(run_option="PS", overrides=["comm.ps.backup_workers=0"])
    ).comm.ps.replicate_variables


def test_the_original_s_constructors() -> None:
    """By position, as its documentation shows them."""
    communication = parallax.CommunicationConfig(parallax.PSConfig("grpc"), parallax.MPIConfig(True, "-v"))
    ckpt = parallax.CheckPointConfig("folder", 1, 2)
    config = parallax.ParallaxConfig("PS", True, None, "logs", True, communication, ckpt)
    assert (config.run_option, config.average_sparse, config.redirect_path) == ("PS", True, "logs")
    assert config.search_partitions and config.communication_config.mpi_config.mpirun_options == "-v"
    assert (config.ckpt_config.ckpt_dir, config.ckpt_config.save_ckpt_steps, ckpt.save_ckpt_secs) == ("folder", 1, 2)
    profile = parallax.ProfileConfig("p", [1], (1, 2))
    assert (profile.profile_dir, profile.profile_steps, profile.profile_range) == ("p", [1], (1, 2))


@pytest.mark.parametrize(("option", "comm"), [("PS", "ps"), ("mpi", "mpi"), (("HYBRID",), "hybrid")])
def test_run_option(option: Any, comm: str) -> None:
    assert composed(parallax.Config(run_option=option)).comm.name == comm


def test_a_wrong_run_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected PS, MPI or HYBRID"):
        composed(parallax.Config(run_option="AR"))


def everything(tmp_path: Path) -> parallax.Config:
    """Nothing is as it is by default, except the search, which needs synchronous training."""
    config = parallax.Config(
        run_option="PS",
        average_sparse=True,
        redirect_path="a b",
        export_graph_path="g",
        run_dir=str(tmp_path / "run"),
        tracking="sqlite:///other.db",
        overrides=["train.max_restarts=2"],
    )
    config.communication_config.ps_config = parallax.PSConfig("grpc+verbs", False, False, False, False)
    config.communication_config.mpi_config = parallax.MPIConfig(mpirun_options="--x 'a,b' $HOME")
    config.ckpt_config = parallax.CheckPointConfig("it's", save_ckpt_steps=3)
    config.profile_config = parallax.ProfileConfig("p", profile_range=(2, 4), profile_worker=0)
    return config


# What `everything` says of each option, by its key; the paths are made absolute.
SAID = {
    "comm.name": "ps",
    "comm.sync": False,
    "comm.average_sparse": True,
    "comm.ps.protocol": "grpc+verbs",
    "comm.ps.local_aggregation": False,
    "comm.ps.boundary_among_servers": False,
    "comm.ps.boundary_between_workers_and_servers": False,
    "comm.mpi.mpirun_options": "--x 'a,b' $HOME",
    "redirect_path": f"{os.getcwd()}/a b",
    "export_graph_path": f"{os.getcwd()}/g",
    "ckpt.dir": f"{os.getcwd()}/it's",
    "ckpt.save_steps": 3,
    "ckpt.save_secs": None,
    "profile.name": "range",
    "profile.dir": f"{os.getcwd()}/p",
    "profile.range": [2, 4],
    "profile.worker": 0,
    "cluster.resource_info": ["localhost: 0,1"],
    "tracking.uri": "sqlite:///other.db",
    "train.max_restarts": 2,
    "train.steps": None,
}


def test_what_is_set_is_said(tmp_path: Path) -> None:
    told = composed(everything(tmp_path), sync=False, has_partitioner=True, resource_info=["localhost: 0,1"])
    assert told.run_dir == str(tmp_path / "run")
    assert {key: OmegaConf.select(OmegaConf.create(plain(told)), key) for key in SAID} == SAID


def test_each_option_of_ps_config_is_passed_on() -> None:
    config = parallax.Config(run_option="PS")
    config.communication_config.ps_config = parallax.PSConfig("grpc+x", False, False, False, False)
    lines = overrides_of(config, resource_info=None, sync=True, has_partitioner=False)
    said = dict(line.split("=", 1) for line in lines)
    assert said["comm.ps.protocol"] == "'grpc+x'"
    names = [option.name for option in dataclasses.fields(config.communication_config.ps_config)[1:]]
    assert len(names) == 4 and set(names) <= set(PsConfig.__dataclass_fields__)
    for name in names:
        assert said[f"comm.ps.{name}"] == "false"


def test_options_for_mpi() -> None:
    config = parallax.Config(run_option="MPI")
    config.communication_config.mpi_config = parallax.MPIConfig(True, ["-x", "A=b c, d"])
    told = composed(config)
    assert told.comm.mpi.use_allgatherv and list(told.comm.mpi.mpirun_options) == ["-x", "A=b c, d"]


def test_profile_steps() -> None:
    told = composed(parallax.Config(profile_config=parallax.ProfileConfig(profile_steps=[2, 7])))
    assert (told.profile.name, list(told.profile.steps)) == ("steps", [2, 7])


def test_save_ckpt_secs() -> None:
    config = parallax.Config(ckpt_config=parallax.CheckPointConfig(save_ckpt_secs=7))
    assert composed(config).ckpt.save_secs == 7


def test_a_search_needs_workers_that_wait_for_each_other() -> None:
    config = parallax.Config(run_option="PS", search_partitions=True)
    assert composed(config, has_partitioner=True).partition.name == "search"
    with pytest.raises(ConfigError, match=r"^partition=search .*with comm\.sync=false no worker waits"):
        composed(config, sync=False, has_partitioner=True)


def test_no_search_without_a_partitioner() -> None:
    assert composed(parallax.Config(search_partitions=True)).partition.name == "off"


@pytest.mark.parametrize("steps", [None, [], ()])
@pytest.mark.parametrize("bounds", [None, [], ()])
def test_no_step_and_no_range_is_nothing_to_profile(steps: Any, bounds: Any) -> None:
    """The original's own scripts pass an empty list, with a folder beside it, or an empty name."""
    for folder in (None, "", "profile"):
        profile = parallax.ProfileConfig(folder, steps, bounds, profile_worker=0)
        assert composed(parallax.Config(profile_config=profile)).profile.name == "off"


def test_an_empty_list_leaves_the_other_option() -> None:
    by_range = composed(parallax.Config(profile_config=parallax.ProfileConfig("", [], (2, 4)))).profile
    assert (by_range.name, list(by_range.range)) == ("range", [2, 4])
    assert not by_range.dir.endswith(os.getcwd())
    by_steps = composed(parallax.Config(profile_config=parallax.ProfileConfig(None, [2], ()))).profile
    assert (by_steps.name, list(by_steps.steps)) == ("steps", [2])


def test_an_empty_path_is_none() -> None:
    """As flags of a script are that nobody gave: not the folder that the script was started in."""
    ckpt = parallax.CheckPointConfig(ckpt_dir="", save_ckpt_steps=5)
    given = parallax.Config(redirect_path="", export_graph_path="", run_dir="", ckpt_config=ckpt)
    config, default = composed(given), composed(parallax.Config())
    assert config.redirect_path is config.export_graph_path is None
    assert Path(config.ckpt.dir).name == Path(default.ckpt.dir).name == "ckpt"
    assert config.run_dir != os.getcwd()


def test_profile_steps_of_an_array() -> None:
    given = parallax.ProfileConfig(profile_steps=np.array([2, 7]))
    assert list(composed(parallax.Config(profile_config=given)).profile.steps) == [2, 7]


def test_profile_steps_and_range_are_never_both() -> None:
    with pytest.raises(ConfigError, match="one of the two"):
        composed(parallax.Config(profile_config=parallax.ProfileConfig(profile_steps=[1], profile_range=(1, 2))))


def test_texts_come_back_whatever_they_end_in() -> None:
    texts = ["a\\", "\\", "it's", "\\'", "", " ", "$HOME", "a\\\\"]
    job = Composer().job(["model=script", "data=script", "model.path=x.py", f"model.arguments={value_of(texts)}"])
    assert list(job.config.model.arguments) == texts


def test_what_would_be_taken_for_a_reference_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\$\{train.seed\}: .* cannot be passed to Hydra"):
        value_of(["--pattern", "${train.seed}"])
