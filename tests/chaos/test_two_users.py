"""Two users run the same at once on one machine: neither disturbs the other, or one message says what is shared."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.conftest import OUTCOME
from tests.chaos.other_user import FIRST, ROOT, SECOND, as_user, needs_root
from tests.free_port import pick_free_port
from tests.integration.runs import LAUNCH_SECS

# For each case: shell code, overrides, and what the second user's message contains if that run fails.
CASES = {
    "same names": ("export XDG_CACHE_HOME=$PWD/cache", "tracking.run_name=same tracking.experiment=same", None),
    "shared cache": ("export XDG_CACHE_HOME=$SHARED/cache", "", "XDG_CACHE_HOME"),
    "shared cache of private files": ("umask 077; export XDG_CACHE_HOME=$SHARED/cache", "", "XDG_CACHE_HOME"),
    "shared measurements": ("export XDG_CACHE_HOME=$SHARED/cache", "comm.measure_rows=true", "XDG_CACHE_HOME"),
    "same run folder": ("export XDG_CACHE_HOME=$PWD/cache", "hydra.run.dir=$SHARED/run", "run.dir"),
    "same database": ("export XDG_CACHE_HOME=$PWD/cache", "tracking.uri=sqlite:///$SHARED/mlflow.db", "mlflow"),
    "same port": (
        "export XDG_CACHE_HOME=$PWD/cache PARALLAX_RENDEZVOUS_SECRET=0123456789abcdef0123456789abcdef",
        "cluster=manual cluster.rendezvous=tcp://127.0.0.1:$PORT cluster.rendezvous_timeout_secs=5",
        "cluster.rendezvous",
    ),
}


@pytest.fixture
def shared(text: Path) -> Iterator[Path]:
    """A folder with the text in which all users can make files, as in /tmp."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    shutil.copy(text, folder / "text.txt")
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def started(uid: int, shell: str, words: str, shared: Path) -> subprocess.Popen[str]:
    home = shared / f"home{uid}"
    (home / "mounts").mkdir(parents=True)
    os.chown(home, uid, uid)
    code = f'cd "$HOME" && {shell} && exec {sys.executable} -m parallax_runner {words}'
    env = {**os.environ, "HOME": str(home), "SHARED": str(shared), "PYTHONPATH": str(ROOT)}
    command = as_user(uid, ["bash", "-c", code], home / "mounts")
    return subprocess.Popen(
        command, cwd=shared, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="replace"
    )


@needs_root
@pytest.mark.parametrize("name", CASES)
def test_at_once(name: str, lm: tuple[str, ...], shared: Path, record_property: Callable[[str, object], None]) -> None:
    record_property(OUTCOME, ("two users at once", name))
    shell, overrides, named = CASES[name]
    words = " ".join([*lm, "data.path=$SHARED/text.txt", "train.steps=4", overrides])
    if "tracking" not in overrides:
        words += " tracking=off"
    shell = f"export PORT={pick_free_port()}; {shell}"
    runs = [started(uid, shell, words, shared) for uid in (FIRST, SECOND)]
    try:
        ends = [(run.communicate(timeout=LAUNCH_SECS)[1], run.returncode) for run in runs]
    finally:
        for run in runs:
            run.kill()
    for stderr, status in ends:
        assert "Traceback" not in stderr, stderr
        if status != 0:
            assert named is not None and named in stderr, stderr
    if name != "same port":  # no workers come to the drivers
        assert 0 in [status for _, status in ends], ends
