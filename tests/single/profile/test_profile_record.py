"""Which steps are recorded, where, and what becomes of what an earlier attempt has recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorflow.core.protobuf import config_pb2

from parallax_runner.config.schema import ProfileConfig
from parallax_runner.profile.record import StepProfiler
from parallax_runner.profile.run_metadata_files import artifacts, run_metadata_files
from parallax_runner.profile.start_of_run import prepare
from tests.single.profile.traced import WORKER_0, run_metadata, write

RAN = (WORKER_0, "a", "Add", 0.0, 1.0)


def steps(folder: Path, *numbers: int, worker: int | None = None) -> ProfileConfig:
    return ProfileConfig(name="steps", dir=str(folder), steps=list(numbers), worker=worker)


def wanted(profile: ProfileConfig, rank: int = 0) -> list[int]:
    profiler = StepProfiler(profile, rank)
    return [step for step in range(20) if profiler.wants(step)]


def test_listed_steps_a_range_or_none_are_wanted(tmp_path: Path) -> None:
    assert wanted(steps(tmp_path, 7, 3)) == [3, 7]
    assert wanted(ProfileConfig(name="range", dir=str(tmp_path), range=[4, 7])) == [4, 5, 6]
    assert wanted(ProfileConfig(name="off")) == []


def test_of_one_worker_no_other_is_profiled(tmp_path: Path) -> None:
    assert [wanted(steps(tmp_path, 3, worker=1), rank) for rank in (0, 1, 2)] == [[], [3], []]


def test_a_step_is_a_file_of_its_rank(tmp_path: Path) -> None:
    metadata = run_metadata(RAN)
    StepProfiler(steps(tmp_path, 100), 2).write(100, metadata)
    assert run_metadata_files(tmp_path) == {100: {2: tmp_path / "worker_2" / "run_meta_100.pb"}}
    written = (tmp_path / "worker_2" / "run_meta_100.pb").read_bytes()
    assert config_pb2.RunMetadata.FromString(written) == metadata
    assert [path.name for path in (tmp_path / "worker_2").iterdir()] == ["run_meta_100.pb"]


def test_a_disk_that_does_not_take_it_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "worker_0").write_text("in the way")
    StepProfiler(steps(tmp_path, 1), 0).write(1, run_metadata(RAN))
    assert "step 1 was not profiled" in caplog.text


def test_steps_that_will_be_done_again_are_forgotten_and_earlier_ones_kept(tmp_path: Path) -> None:
    for rank in (0, 1):
        for step in (5, 10, 15):
            write(tmp_path, RAN, rank=rank, step=step)
    write(tmp_path, RAN, rank=2, step=15)
    (tmp_path / "trace.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("the user's own")
    prepare(steps(tmp_path, 5, 15), first_step=10)
    assert {step: list(ranks) for step, ranks in run_metadata_files(tmp_path).items()} == {5: [0, 1], 10: [0, 1]}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "worker_0", "worker_1"]


def test_what_is_off_leaves_everything_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path, RAN, step=5)
    prepare(ProfileConfig(name="off", dir=str(tmp_path)), first_step=0)
    assert path.exists()


def test_steps_that_are_over_are_named_unless_they_have_been_profiled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, RAN, step=4)
    prepare(steps(tmp_path, 3, 4, 8, 9), first_step=8)
    assert "steps 3, 8 of profile.steps are not profiled, because the run starts after step 8" in caplog.text
    caplog.clear()
    prepare(ProfileConfig(name="range", dir=str(tmp_path / "new"), range=[2, 9]), first_step=3)
    assert "steps 2, 3 of profile.range are not profiled, because the run starts after step 3" in caplog.text


def test_artifacts_are_what_was_made_and_not_what_else_lies_there(tmp_path: Path) -> None:
    write(tmp_path, RAN, rank=1)
    for name in ("trace.json", "notes.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "worker_0").mkdir()
    assert [path.name for path in artifacts(tmp_path)] == ["trace.json", "worker_1"]
