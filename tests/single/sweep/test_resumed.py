"""What a sweep that is started again says of its jobs."""

from pathlib import Path

import pytest

from parallax_runner.checkpoints.publish import publish
from parallax_runner.config.frozen import from_plain
from parallax_runner.config.schema import RunConfig
from parallax_runner.sweep.ledger import Account, Job, Standing, Status
from parallax_runner.sweep.resumed import far
from tests.single.checkpoints.test_checkpoint_files import Killed, die_at, partial, sidecar, written


def job(folder: Path, name: str, resume: str = "auto") -> tuple[Job, RunConfig]:
    ckpt = {"enabled": True, "dir": str(folder / name / "ckpt"), "resume": resume}
    config = from_plain({"run_dir": str(folder / name), "ckpt": ckpt})
    return Job(name, name, (name,), str(folder / name)), config


def account(planned: list[tuple[Job, RunConfig]], *statuses: Status) -> Account:
    jobs = [job for job, _ in planned]
    return Account({one.name: Standing(one, status, 1) for one, status in zip(jobs, statuses, strict=False)})


def test_a_first_start_says_nothing(tmp_path: Path) -> None:
    assert far(Account({}), [job(tmp_path, "a")]) is None


def test_finished_jobs_and_those_that_continue_are_counted(tmp_path: Path) -> None:
    planned = [job(tmp_path, name) for name in "abcd"]
    (tmp_path / "b" / "ckpt").mkdir(parents=True)
    for step in (7, 14):
        written(tmp_path / "b" / "ckpt", step)
    known = account(planned, "finished", "interrupted", "failed")
    assert far(known, planned) == "1 finished, 1 continues at step 14, 2 to do"
    (tmp_path / "c" / "ckpt").mkdir(parents=True)
    written(tmp_path / "c" / "ckpt", 3)
    assert far(known, planned) == "1 finished, 2 continue at steps 3 and 14, 1 to do"


def test_where_a_sweeper_chooses_the_jobs_those_of_before_are_counted(tmp_path: Path) -> None:
    known = account([job(tmp_path, name) for name in "abc"], "finished", "interrupted", "finished")
    assert far(known, []) == "2 finished, 1 not finished, and the sweeper chooses new jobs"
    assert far(Account({}), []) is None


@pytest.mark.parametrize("resume", ["never", "/another/run"])
def test_a_job_that_does_not_look_for_its_checkpoint_is_to_do(tmp_path: Path, resume: str) -> None:
    (tmp_path / "a" / "ckpt").mkdir(parents=True)
    written(tmp_path / "a" / "ckpt", 7)
    planned = [job(tmp_path, "a", resume)]
    assert far(account(planned, "failed"), planned) == "0 finished, 1 to do"


def test_a_job_with_other_overrides_is_another_one(tmp_path: Path) -> None:
    planned = [job(tmp_path, "a")]
    before = Job("a", "a", ("another",), str(tmp_path / "a"))
    assert far(Account({"a": Standing(before, "finished", 1)}), planned) == "0 finished, 1 to do"


@pytest.mark.parametrize("call", [2, 3])
def test_a_checkpoint_that_a_kill_left_on_its_way_counts(tmp_path: Path, call: int) -> None:
    folder = tmp_path / "a" / "ckpt"
    folder.mkdir(parents=True)
    written(folder, 7)
    prefix = partial(folder, 14)
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, call)
        with pytest.raises(Killed):
            publish(prefix, folder, sidecar(14))
    planned = [job(tmp_path, "a")]
    assert far(account(planned, "interrupted"), planned) == "0 finished, 1 continues at step 14, 0 to do"
