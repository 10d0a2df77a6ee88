"""Values of a wrong type, out of range, or that lead nowhere."""

import os
from pathlib import Path

import pytest

from tests.single.config.refused import run, wrong_line

CASES = {
    "lookahead of earlier versions": (
        "comm=sharded comm.lookahead=1",
        "comm.lookahead=1 (command line)",
        "expected one of auto, off, on; on replaces 1 and requests only rows of other ranks in advance.",
    ),
    "lookahead of two steps": ("comm.lookahead=2", "comm.lookahead=2 (command line)", "expected one of auto, off, on."),
    "a choice that YAML reads as a truth value": (
        "comm.compression=false",
        "comm.compression=false (command line)",
        "expected one of off, fp16, bf16; put on and off in quotes in a file, where YAML reads them as true and false",
    ),
    "an ensemble of one": ("sweep.ensemble=1", "sweep.ensemble=1", "at least 2"),
    "links of no width": (
        "action=simulate simulate.bandwidth_gbit_per_sec=0",
        "simulate.bandwidth_gbit_per_sec=0",
        "greater than 0",
    ),
    "type": ("train.steps=abc", "train.steps=abc (command line)", "expected an integer, at least 1"),
    "fraction": ("train.steps=1.5", "train.steps=1.5 (command line)", "expected an integer"),
    "not true or false": ("comm.sync=maybe", "comm.sync=maybe (command line)", "expected true or false"),
    "type of the model's": ("model.keep_prob=abc", "model.keep_prob=abc (command line)", "expected a number"),
    "type of a reference to a list": (
        "model=dlrm_keras model.cardinalities=5",
        "model.cardinalities=5 (command line)",
        "expected a list, such as the default [100, 100",
    ),
    "negative": ("train.steps=-5", "train.steps=-5 (command line)", "expected an integer, at least 1"),
    "no workers": ("cluster.workers=0", "cluster.workers=0 (command line)", "at least 1"),
    "no time": ("ckpt.save_secs=0", "ckpt.save_secs=0 (command line)", "expected a number, greater than 0, or null"),
    "negative rate": (
        "optimizer.learning_rate=-0.1",
        "optimizer.learning_rate=-0.1 (command line)",
        "expected a finite number, at least 0",
    ),
    "negative rate of a model": (
        "model=two_tower model.learning_rate=-1",
        "model.learning_rate=-1 (command line)",
        "at least 0",
    ),
    "negative first rate": ("+optimizer.initial_learning_rate=-1", "optimizer.initial_learning_rate=-1", "at least 0"),
    "negative rate of a schedule": (
        "+optimizer.schedule={_target_:a.b,end_learning_rate:-1}",
        "optimizer.schedule.end_learning_rate=-1 (command line)",
        "at least 0",
    ),
    "rate that is no number": ("optimizer.learning_rate=nan", "optimizer.learning_rate=nan", "expected a finite"),
    "no norm": (
        "update.clip_norm=0",
        "update.clip_norm=0 (command line)",
        "expected a number, greater than 0, or null",
    ),
    "norm that is no number": ("update.clip_norm=nan", "update.clip_norm=nan (command line)", "expected a finite"),
    "no such decay": ("update.schedule.decay=cos", "expected one of constant, linear, cosine, exponential"),
    "infinite rate": ("optimizer.learning_rate=inf", "optimizer.learning_rate=inf", "expected a finite"),
    "batch": ("data.batch_size=0", "data.batch_size=0 (command line)", "expected an integer, at least 1"),
    "no batch": ("data.batch_size=null", "data.batch_size=null (command line)", "expected an integer, at least 1"),
    "backup of a few": ("comm=ps comm.ps.backup_workers=-1", "comm.ps.backup_workers=-1 (command line)", "at least 0"),
    "no bound": ("comm=ps comm.sync=false comm.ps.staleness=0", "comm.ps.staleness=0 (command line)", "at least 1"),
    "memory": ("cluster.gpu_memory_fraction=2", "cluster.gpu_memory_fraction=2 (command line)", "at most 1"),
    "profile that is not there": (
        "action=simulate simulate.profile=nowhere.json",
        "simulate.profile=nowhere.json (command line)",
        "no such file",
    ),
    "no such hosts": ("cluster.resource_info=nowhere.txt", "nowhere.txt: cannot read the hosts of the run"),
    "logs in a file": (
        "redirect_path=/etc/passwd",
        "redirect_path=/etc/passwd (command line)",
        "/etc/passwd is a file",
    ),
    "graphs in a file": (
        "export_graph_path=/etc/passwd",
        "export_graph_path=/etc/passwd (command line)",
        "/etc/passwd is a file",
    ),
    "home": ("ckpt.dir='~/ckpt'", "ckpt.dir=~/ckpt (command line)", f"write {os.path.expanduser('~')}/ckpt"),
    "profile in a file": (
        "profile=steps profile.steps=[1] profile.dir=/dev/null",
        "profile.dir=/dev/null (command line)",
        "is a file",
    ),
    "checkpoints without a folder": ("ckpt.dir=null", "ckpt.dir=null (command line)", "expected a folder"),
    "resume": ("ckpt.resume=/no/such", "ckpt.resume=/no/such (command line)", "expected auto, never, or a path"),
    "no path": ("data=text", "data.path=??? (", "conf/data/text.yaml:", "data.path=VALUE"),
    "wrong path": ("data=text data.path=/no/such", "data.path=/no/such (command line)", "no such file or folder"),
    "empty folder": ("data=text data.path=empty", "data.path=empty (command line)", "this folder contains no files"),
    "number for a path": ("data=text data.path=2024", "data.path=2024 (command line)", "data.path=\"'2024'\""),
    "negative seed": ("data.seed=-1", "data.seed=-1 (command line)", "at least 0"),
    "reference": ("train.seed=${foo.bar}", "train.seed=${foo.bar} (command line)", "'foo.bar' not found"),
    "circle": ("train.seed=${train.seed}", "train.seed=${train.seed} (command line)", "Recursive"),
    "reference of a wrong type": ("train.seed=${comm.name}", "train.seed=${comm.name} (command line)", "to Integer"),
    "environment": ("train.seed=${oc.env:NO_SUCH}", "train.seed=${oc.env:NO_SUCH} (command line)", "'NO_SUCH'"),
    "referenced value": ("train.steps=${train.seed} train.seed=0", "train.steps=${train.seed} [0] (command line)"),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_value(name: str, tmp_path: Path) -> None:
    wrong_line(CASES[name], tmp_path)


@pytest.mark.parametrize("name", ["type"])
def test_wrong_value_as_a_user_types_it(name: str, tmp_path: Path) -> None:
    wrong_line(CASES[name], tmp_path, respond=run)
