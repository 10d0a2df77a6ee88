"""A GPU for each job that runs at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parallax_runner.errors import LaunchError
from parallax_runner.sweep import device
from parallax_runner.sweep.device import own_gpu


@pytest.fixture(params=[None, "3,GPU-7f"])
def visible(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What jobs are to see of a machine of which two GPUs are visible."""
    monkeypatch.setattr(device, "detect_gpus", lambda: (0, 1))
    if request.param is None:
        monkeypatch.delenv(device.VISIBLE, raising=False)
        return ["0", "1"]
    monkeypatch.setenv(device.VISIBLE, request.param)
    return request.param.split(",")


def test_jobs_at_a_time_see_one_gpu_each(visible: list[str], tmp_path: Path) -> None:
    before = os.environ.get(device.VISIBLE)
    with own_gpu(tmp_path):
        assert os.environ[device.VISIBLE] == visible[0]
    assert os.environ.get(device.VISIBLE) == before
    with own_gpu(tmp_path):
        other = os.environ.pop(device.VISIBLE)
        if before is not None:
            os.environ[device.VISIBLE] = before  # as in another process
        with own_gpu(tmp_path):
            assert [other, os.environ[device.VISIBLE]] == visible
        os.environ[device.VISIBLE] = other
    assert os.environ.get(device.VISIBLE) == before


def test_more_jobs_than_gpus(visible: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "detect_gpus", lambda: (0,))
    with (
        own_gpu(tmp_path),
        pytest.raises(LaunchError, match=r"every GPU of this machine already has a job; .*n_jobs to at most 1"),
    ):
        own_gpu(tmp_path).__enter__()
    with own_gpu(tmp_path):
        assert os.environ[device.VISIBLE] == visible[0]
