"""Wrong names of choices, groups, actions, launchers and trackers."""

from pathlib import Path

import pytest

from tests.single.config.refused import run, wrong_line

CASES = {
    "choice": (
        "comm=hybird",
        "comm=hybird (command line)",
        "auto, hybrid, local, mpi, ps, sharded",
        "Did you mean comm=hybrid?",
    ),
    "later choice": (
        "comm=gossip",
        "comm=gossip (command line)",
        "expected one of auto, hybrid, local, mpi, ps, sharded",
    ),
    "unknown launcher": (
        "comm=ps cluster.launcher=locall",
        "cluster.launcher=locall (command line)",
        "expected one of auto, local, hosts, slurm, manual, kubernetes, or a class such as package.module.Class",
        "Did you mean cluster.launcher=local?",
    ),
    "launcher that is not there": (
        "comm=ps cluster.launcher=nowhere.Mine",
        "cluster.launcher=nowhere.Mine (command line)",
        "nowhere.Mine cannot be imported: ModuleNotFoundError: No module named 'nowhere'",
    ),
    "launcher of another kind": (
        "comm=ps cluster.launcher=pathlib.Path",
        "cluster.launcher=pathlib.Path (command line)",
        "expected a class that extends parallax_runner.launch.launchers.launcher.Launcher",
    ),
    "choice in capitals": ("model=LM", "model=LM (command line)", "Did you mean model=lm?"),
    "choice by another name": ("optimizer=SGD", "Did you mean optimizer=gradient_descent?"),
    "choice that looks like another": ("comm=allreduce", "Did you mean comm=mpi?"),
    "data of another kind": (
        "data=csv",
        "data=csv (command line)",
        "Use data=table data.format=csv.",
    ),
    "number for a choice": ("comm=3", "comm=3 (command line)", "expected one of"),
    "several choices": ("comm=[mpi,ps]", "comm=[mpi,ps] (command line)", "expected one of"),
    "no choice": ("comm=null", "comm=null (command line)", "expected one of"),
    "experiment": ("experiment=quik", "expected one of", "Did you mean experiment=quick?"),
    "group": ("com=mpi", "com=mpi (command line)", "Did you mean comm=mpi?"),
    "added group": ("+comm=mpi", "+comm=mpi (command line)", "Did you mean comm=mpi?"),
    "package": ("comm@foo=mpi", "comm@foo=mpi (command line)", "Did you mean comm=mpi?"),
    "launcher": ("hydra/launcher=baisc", "hydra/launcher=baisc (command line)", "Did you mean hydra/launcher=basic?"),
    "tracker": (
        "tracking.tracker=mlfow",
        "tracking.tracker=mlfow (command line): expected one of mlflow, or a class such as package.module.Class",
        "Did you mean tracking.tracker=mlflow?",
    ),
    "tracker of no module": (
        "tracking.tracker=no_such.Tracker",
        "tracking.tracker=no_such.Tracker (command line)",
        "no_such.Tracker cannot be imported: ModuleNotFoundError: No module named 'no_such'",
    ),
    "tracker of no class": ("tracking.tracker=json.Tracker", "module 'json' has no attribute 'Tracker'"),
    "tracker that is none": (
        "tracking.tracker=collections.Counter",
        "tracking.tracker=collections.Counter (command line)",
        "expected a class that extends parallax_runner.track.tracker.Tracker",
    ),
    "action": ("action=trian", "action=trian (command line)", "expected one of train, plan, verify"),
    "a route that is not there": (
        "comm=hybrid comm.routes.sparse=alltoal",
        "comm.routes.sparse=alltoal (command line)",
        "no such route; expected one of local, allreduce, allgather, ps, alltoall. "
        "Did you mean comm.routes.sparse=alltoall?",
    ),
    "a kind of gradient that is not there": (
        "comm=hybrid +comm.routes.dens=ps",
        "comm.routes.dens=ps (command line)",
        "unknown key; comm.routes has dense, sparse",
        "Did you mean comm.routes.dense=ps?",
    ),
    "a route where the cost model chooses": (
        "comm=auto comm.routes.dense=ps",
        "comm.routes.dense=ps (command line)",
        "comm.routes is null under this choice of comm, so no key below it can be set; choose another comm",
    ),
    "routes of another choice": (
        "comm=hybrid comm.routes.sparse=alltoall",
        "comm.name=hybrid",
        "choose comm=hybrid, or set another comm.name",
    ),
    "the name of another choice": ("comm=hybrid comm.name=mpi", "comm.name=mpi (command line)", "choose comm=mpi"),
    "a name of no choice": (
        "comm=local comm.name=mine",
        "comm.name=mine (command line)",
        "the choice comm=local sets this key",
    ),
    "the name of another cut": (
        "partition.name=fixed",
        "partition.name=fixed (command line)",
        "the choice partition=off sets this key",
        "Did you mean partition=fixed?",
    ),
    "routes for auto": ("comm=hybrid comm.name=auto", "comm.routes", "comm=auto chooses a route for each variable"),
    "no routes": ("comm=auto comm.name=mine", "comm.name=mine", "or a new name with comm.routes"),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_choice(name: str, tmp_path: Path) -> None:
    wrong_line(CASES[name], tmp_path)


@pytest.mark.parametrize("name", ["choice"])
def test_wrong_choice_as_a_user_types_it(name: str, tmp_path: Path) -> None:
    wrong_line(CASES[name], tmp_path, respond=run)
