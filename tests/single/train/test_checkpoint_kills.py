"""kill -9 at any moment of saving: the newest checkpoint is there, whole, and opens."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import tensorflow.compat.v1 as tf

from parallax_runner.train.checkpoint_files import read_sidecar, step_of
from parallax_runner.train.checkpoint_start import find_start
from tests.single.small_models import ROWS, WIDTH

KILLS = 25
# Forks children from a process that has imported TensorFlow and has not used it: each goes on from the newest
# checkpoint and saves without end, some steps twice, as a run does that goes back.
SAVER = """
    import os, sys
    from pathlib import Path
    from tests.single.train import test_checkpoint_saver as small
    from parallax_runner.train.checkpoint_start import find_start
    from parallax_runner.train.checkpoint_files import step_of

    def save_without_end(folder):
        prefix = find_start("auto", folder).prefix
        step = 0 if prefix is None else max(0, step_of(prefix) - 2)
        chief = small.Chief()
        made = small.saver(folder, chief.ops, keep=2)
        made.start(step)
        print("saving", flush=True)
        while True:
            step += 1
            made.save(chief.session, step=step, examples=8 * step)

    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            save_without_end(Path(line.strip()))
        print("child", child, flush=True)
        os.waitpid(child, 0)
"""


def said(process: subprocess.Popen[str], word: str) -> str:
    """The next line that begins with `word`."""
    assert process.stdout is not None
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([process.stdout], [], [], 1)[0]:
            line = process.stdout.readline()
            assert line, "the process has ended"
            if line.startswith(word):
                return line
    raise AssertionError(f"no «{word}»")


def start_child(process: subprocess.Popen[str], folder: Path) -> int:
    """Its pid, once it saves."""
    print(folder, file=process.stdin)
    child = int(said(process, "child").split()[1])
    said(process, "saving")
    return child


def time_saves(process: subprocess.Popen[str], folder: Path) -> float:
    """Seconds that a child takes on this machine, as busy as it is, until it has saved five times."""
    folder.mkdir()
    child, started = start_child(process, folder), time.monotonic()
    while not (folder / "model.ckpt-5.json").exists():
        assert time.monotonic() < started + 60
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    return time.monotonic() - started


def test_the_newest_checkpoint_survives_every_kill(tmp_path: Path) -> None:
    draw, newest = random.Random(1), []
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SAVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        cwd=Path(__file__).parents[3],
    ) as process:
        assert process.stdin is not None
        said(process, "ready")
        longest_secs, folder = time_saves(process, tmp_path / "timed"), tmp_path / "killed"
        folder.mkdir()
        for _ in range(KILLS):
            child = start_child(process, folder)
            time.sleep(draw.uniform(0, longest_secs))
            os.kill(child, signal.SIGKILL)
            before = sorted(path.name for path in folder.iterdir())
            found = find_start("auto", folder)
            if found.prefix is None:
                assert not newest, before
                continue
            assert found.notes == (), before
            assert read_sidecar(found.prefix).examples == 8 * step_of(found.prefix)
            assert tf.train.load_checkpoint(str(found.prefix)).get_tensor("table").shape == (ROWS, WIDTH)
            newest.append(step_of(found.prefix))
        process.stdin.close()
    # Each child begins two steps back; but for a kill in its first moments it gets beyond where the last one was.
    assert len(newest) > KILLS // 2
    assert newest[-1] > 2
