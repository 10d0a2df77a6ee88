"""Command lines, folders and streams that nobody means: each ends in one message, and none in a traceback."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_runner.config.explain import MOST_CHARS, shown
from parallax_runner.config.frozen import from_plain
from parallax_runner.errors import ConfigError
from parallax_runner.files.access import unwritable
from parallax_runner.graph.build import load_dataset
from tests.single.config.in_process import answer
from tests.single.config.refused import refused, run

LONG = "n" * 256
CASES = {
    "line break": ("train.steps=1\n2", r"train.steps=1\n2 (command line)", ": a line break, which must be"),
    "many digits": ("train.steps=" + "9" * 5000, "train.steps=999", "the value cannot be read: Exceeds the limit"),
    "many brackets": ("train.steps=" + "[" * 3000 + "]" * 3000, "train.steps=[[[", "nested too deeply"),
    "mode": ("hydra.mode=${train.steps}", "hydra.mode=${train.steps} (command line): expected one of RUN, MULTIRUN."),
    "data in part": ("+data._partial_=true", "data._partial_=true (command line): the function is called once"),
    "model in part": ("+model._partial_=true", "model._partial_=true (command line): the function is called once"),
    "long name": (f"hydra.run.dir={LONG}", f"{LONG} (command line): a name in the path has more than 255 bytes."),
    "long name of a sweep": (f"-m hydra.sweep.dir={LONG}", f"{LONG}: a name in the path has more than 255 bytes"),
    "long name of a job": (f"-m hydra.sweep.subdir={LONG}", "run_dir=", "a name in the path has more than 255 bytes."),
    "long name of logs": (
        f"redirect_path={LONG}",
        f"redirect_path={LONG} (command line): a name in the path has more than",
    ),
    "long choice": ("comm=" + "/".join("a" * 2500), "no such choice; expected one of auto, hybrid"),
    "long path": ("hydra.run.dir=" + "a/" * 2500, "hydra.run.dir=a/a/", "the path is too long."),
    "long name of a database": (
        f"tracking.uri=sqlite:///{LONG}",
        f"{LONG}: this store cannot be used: File name too long",
    ),
    "kernel": ("hydra.run.dir=/proc/x", "hydra.run.dir=/proc/x (command line): the folder /proc is not writable."),
    "kernel, a sweep": ("-m hydra.sweep.dir=/proc/x", "hydra.sweep.dir=/proc/x: the folder /proc is not writable"),
    "kernel, a database": ("tracking.uri=sqlite:////proc/x", "cannot be used: the folder /proc is not writable"),
    "kernel, Hydra's own folder": (
        "hydra.output_subdir=/proc/x",
        "hydra.output_subdir=/proc/x (command line): the folder /proc is not writable.",
    ),
    "Hydra's own folder in a file": ("-m hydra.output_subdir=/dev/null comm=ps,mpi", "job 0", "/dev/null is a file."),
    "loggers": ("hydra.verbose=null", "hydra.verbose=null (command line): expected true, false, the name of a logger"),
    "a logger": ("hydra.verbose=[1]", "hydra.verbose=[1] (command line): expected true, false, the name of a logger"),
    "callback": (
        "+hydra.callbacks.x._target_=nowhere.X",
        "hydra.callbacks.x._target_=nowhere.X (command line): nowhere.X cannot be imported: ModuleNotFoundError",
    ),
    "callback that ends the process": (
        "+hydra.callbacks.x._target_=builtins.exit",
        "(command line): expected a class that extends hydra.experimental.callback.Callback.",
    ),
    "callbacks that are none": (
        "hydra.callbacks=${train.steps}",
        "hydra.callbacks=${train.steps}",
        "expected a mapping",
    ),
    "callback without a name": ("+hydra.callbacks.x=3", "hydra.callbacks.x=3 (command line): expected the dotted name"),
    "variable that is not set": (
        "hydra.job.env_copy=[NO_SUCH_]",
        "hydra.job.env_copy=['NO_SUCH_'] (command line): the environment variable 'NO_SUCH_' is not set.",
    ),
    "setting behind a flag": ("comm=ps -m train.seed=1,2", "train.seed=1,2 (command line): a flag separates"),
    "bytes": ("hydra.run.dir='caf\udce9'", r"hydra.run.dir='caf\udce9' (command line)", "it is not valid UTF-8"),
    "flag": ("--hydra-help comm=hybird", "comm=hybird (command line): no such choice"),
    "info": ("--info=defaults train.steps=(", "train.steps=( (command line): expected key=value"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(name: str, tmp_path: Path) -> None:
    line, *fragments = CASES[name]
    words = [word for word in line.split(" ") if word]
    # Databases are looked at when the run begins.
    message = unusable(words[0].partition("=")[2]) if "database" in name else refused(answer(*words, cwd=tmp_path))
    assert [fragment for fragment in fragments if fragment not in message] == []
    assert len(message) < 6000
    assert not list(tmp_path.iterdir())


def unusable(uri: str) -> str:
    from parallax_runner.track.mlflow.store_check import check_store

    with pytest.raises(ConfigError) as caught:
        check_store(uri, "e")
    return str(caught.value)


def test_long_texts_are_cut_and_control_characters_escaped() -> None:
    assert shown("a\nb\x1b[31m\u202eé日") == r"a\nb\x1b[31m\u202eé日"
    assert len(shown("x" * 10_000)) < MOST_CHARS and shown("x" * MOST_CHARS) == "x" * MOST_CHARS


def test_a_folder_that_can_be_made_is_not_refused(tmp_path: Path) -> None:
    assert unwritable(str(tmp_path / ("n" * 255) / "é")) is None
    assert "more than 255 bytes" in str(unwritable(str(tmp_path / ("é" * 128)))), "bytes and not characters"
    assert unwritable("a\ud800") == "the path cannot be read: it is not valid UTF-8"


def test_data_that_are_no_data_set(tmp_path: Path) -> None:
    config = from_plain({"data": {"_target_": "collections.OrderedDict", "batch_size": 4}})
    with pytest.raises(
        ConfigError, match=r"data._target_=collections.OrderedDict: the function returned an object of type Ordered"
    ):
        load_dataset(config)


@pytest.mark.parametrize("arguments", ["", "--help", "--cfg=job", "--info=defaults", "-m comm=mpi,ps"])
def test_a_folder_that_was_deleted(arguments: str, tmp_path: Path) -> None:
    command = f"mkdir gone; cd gone; rmdir ../gone; exec {shlex.quote(sys.executable)} -m parallax_runner {arguments}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert refused(done) == "the current folder was deleted: change to another folder"


def test_a_folder_that_has_no_name_in_utf_8(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    assert "the path cannot be read: it is not valid UTF-8" in refused(run("model=simple", cwd=folder))
    assert run("--cfg=job", cwd=folder).returncode == 0


@pytest.mark.parametrize(("arguments", "status"), [("--version", 0), ("--help", 0), ("comm=hybird", 2)])
@pytest.mark.parametrize("closed", [">&- 2>&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full 2>/dev/full"])
def test_streams_that_cannot_be_written(arguments: str, status: int, closed: str, tmp_path: Path) -> None:
    command = f"exec {shlex.quote(sys.executable)} -m parallax_runner {arguments} {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == status
    assert "Traceback" not in done.stderr + done.stdout
