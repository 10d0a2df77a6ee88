"""Names of the folders of a sweep's jobs."""

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from parallax_runner.config.compose import Composer, resolve
from parallax_runner.config.job_folder import MAX_CHARS, job_folder


def names(*lines: str) -> list[str]:
    return [Path(resolve(job).run_dir).name for job in Composer().jobs(list(lines), multirun=True)]


@pytest.mark.parametrize(
    ("dirname", "folder"),
    [
        ("comm=mpi,train.seed=1", "comm-mpi+train.seed-1"),
        ("optimizer.learning_rate=1e-05", "optimizer.learning_rate-1e-05"),
        ("+tracking.tags.team=x,comm=ps", "tracking.tags.team-x+comm-ps"),
        ("", "job"),
    ],
)
def test_readable(dirname: str, folder: str) -> None:
    assert job_folder(dirname) == folder


def test_paths_show_their_last_part_and_never_collide() -> None:
    first, second = job_folder("data.path=/a/words.txt,x=1"), job_folder("data.path=/b/words.txt,x=1")
    assert first.startswith("data.path-words.txt+x-1-") and second.startswith("data.path-words.txt+x-1-")
    assert first != second


def test_odd_characters_and_long_names() -> None:
    assert job_folder("a='x y'") != job_folder("a='x_y'")
    long = [job_folder(f"key={'x' * 200}{end}") for end in "ab"]
    assert len(set(long)) == 2
    assert all(len(one) == MAX_CHARS for one in long)


@pytest.mark.parametrize("dirname", ["comm=mpi,train.seed=1", "data.path=/a/b c/d.txt", "x=[1,2],y={a:1}", "a='(é*?'"])
def test_needs_no_quotes(dirname: str) -> None:
    """So that a job's folder can be typed behind `ckpt.resume=`."""
    (override,) = OverridesParser.create().parse_overrides([f"ckpt.resume=multirun/{job_folder(dirname)}"])
    assert override.value() == f"multirun/{job_folder(dirname)}"


def test_only_swept_overrides_count_in_any_order() -> None:
    expected = ["comm-mpi+train.seed-1", "comm-mpi+train.seed-2", "comm-ps+train.seed-1", "comm-ps+train.seed-2"]
    assert names("comm=mpi,ps", "train.seed=1,2", "train.steps=9", "model=simple") == expected
    assert sorted(names("model=simple", "train.seed=2,1", "comm=ps,mpi")) == expected


def test_a_job_keeps_its_name_when_the_list_changes() -> None:
    assert names("train.seed=3,7")[1] == names("train.seed=7,8,9")[0]


def test_lists_of_an_experiment_count() -> None:
    assert names("experiment=lm_modes", "train.steps=3")[0] == "comm-mpi+train.seed-1"


def test_user_decides() -> None:
    assert names("train.seed=1,2", "hydra.sweep.subdir=${hydra.job.num}") == ["0", "1"]
    exclude = "hydra.job.config.override_dirname.exclude_keys=[train.seed]"
    assert names("train.seed=1", "comm=mpi,ps", exclude) == ["comm-mpi", "comm-ps"]


def test_one_job_with_nothing_swept() -> None:
    assert names("train.seed=1") == ["job"]
