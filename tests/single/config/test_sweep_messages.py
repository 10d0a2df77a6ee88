"""Wrong sweeps, and wrong jobs of a sweep."""

from pathlib import Path

import pytest

from tests.single.config.refused import run, wrong_line

CASES = {
    "negative rate in a sweep": ("-m optimizer.learning_rate=0,-1", "job 1", "optimizer.learning_rate=-1"),
    "checkpoints of a sweep in one folder": (
        "-m comm=mpi,ps ckpt.dir=x",
        "job 1",
        "ckpt.dir=x (command line)",
        "its own folder",
    ),
    "checkpoints of a study in one folder": (
        "-m hydra/sweeper=optuna comm=choice(mpi,ps) ckpt.dir=x",
        "ckpt.dir=x (command line)",
        "its own folder",
    ),
    "profiles of a sweep in one folder": (
        "-m comm=mpi,ps profile=steps profile.steps=[1] profile.dir=x",
        "job 1",
        "profile.dir=x (command line)",
        "its own folder",
    ),
    "sweep of an unknown size": (
        "-m train.steps=interval(1,3)",
        "train.steps=interval(1,3) (command line)",
        "expanded",
    ),
    "sweep without -m": ("comm=mpi,ps", "comm=mpi,ps (command line)", "-m (--multirun)"),
    "sweep over Hydra": ("-m hydra.run.dir=a,b", "hydra.run.dir=a,b (command line)", "a sweep cannot vary"),
    "job of a sweep": ("-m train.steps=5,0", "job 1 (train.steps=0): train.steps=0 (command line)"),
    "combination in a sweep": ("-m comm=ps,mpi comm.sync=false", "comm.sync=false (command line)", "job 1 (comm=mpi"),
    "shared folder": ("-m run_dir=x train.seed=1,2", "run_dir=x (command line)", "its own folder"),
    "shared logs": ("-m redirect_path=x train.seed=1,2", "redirect_path=x (command line)", "its own folder"),
    "shared graphs": ("-m export_graph_path=x train.seed=1,2", "export_graph_path=x (command", "its own folder"),
    "sweep over an empty range": (
        "-m train.seed=range(5,5)",
        "train.seed=range(5,5) (command line): the sweep has no",
    ),
    "sweep over no choice": (
        "-m optimizer=glob(addm*)",
        "optimizer=glob(addm*) (command line): the sweep has no",
    ),
    "choice in a sweep": ("-m comm=mpi,pss", "comm=pss (command line)", "Did you mean comm=ps?"),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_sweep(name: str, tmp_path: Path) -> None:
    wrong_line(CASES[name], tmp_path)


@pytest.mark.parametrize("name", ["combination in a sweep"])
def test_wrong_sweep_as_a_user_types_it(name: str, tmp_path: Path) -> None:
    wrong_line(CASES[name], tmp_path, respond=run)
