"""kill -9 at any moment of saving: the newest checkpoint is there, whole, and opens."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import read_sidecar, step_of
from parallax_runner.checkpoints.start import find_start
from tests.single.small_models import ROWS, WIDTH

KILLS = 25
# Forks children from a process that has imported TensorFlow and has not used it: each goes on from the newest
# checkpoint and saves without end, some steps twice, as a run does that goes back.
SAVER = """
    import os, sys
    from pathlib import Path
    from tests.single.checkpoints import test_checkpoint_saver as small
    from parallax_runner.checkpoints.start import find_start
    from parallax_runner.checkpoints.checkpoint_files import step_of

    def save_without_end(folder):
        prefix = find_start("auto", folder).prefix
        step = 0 if prefix is None else max(0, step_of(prefix) - 2)
        chief = small.Chief()
        made = small.saver(folder, chief.ops, keep=2)
        made.start(step)
        print("saving", os.getpid(), flush=True)
        made.save(chief.session, step=step + 1, examples=8 * (step + 1))
        while True:
            step += 1
            made.save(chief.session, step=step + 1, examples=8 * (step + 1))  # waits until the one before is written
            print("written", step, flush=True)

    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            save_without_end(Path(line.strip()))
        os.waitpid(child, 0)
"""


def said(process: subprocess.Popen[str], word: str) -> list[str]:
    """The other words of the next line that begins with `word`."""
    assert process.stdout is not None
    for line in process.stdout:
        first, *others = line.split()
        if first == word:
            return others
    raise AssertionError(f"the process has ended without «{word}»")


def start_child(process: subprocess.Popen[str], folder: Path) -> int:
    """Its pid, once it saves."""
    print(folder, file=process.stdin)
    return int(said(process, "saving")[0])


def wait_for_files(process: subprocess.Popen[str], count: int) -> int:
    """The step of the last of `count` checkpoints that are written; 0 for none."""
    steps = [int(said(process, "written")[0]) for _ in range(count)]
    return steps[-1] if steps else 0


def time_save(process: subprocess.Popen[str], folder: Path) -> float:
    """Seconds of a save on this machine, as busy as it is."""
    folder.mkdir()
    child, started = start_child(process, folder), time.monotonic()
    wait_for_files(process, 5)
    os.kill(child, signal.SIGKILL)
    return (time.monotonic() - started) / 5


def test_the_newest_checkpoint_survives_every_kill(tmp_path: Path) -> None:
    draw, newest = random.Random(1), 0
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
        save_secs, folder = time_save(process, tmp_path / "timed"), tmp_path / "killed"
        folder.mkdir()
        for _ in range(KILLS):
            child = start_child(process, folder)
            written = wait_for_files(process, draw.randrange(5))
            time.sleep(draw.uniform(0, save_secs))
            os.kill(child, signal.SIGKILL)
            before = sorted(path.name for path in folder.iterdir())
            found = find_start("auto", folder)
            assert found.notes == (), before
            if found.prefix is None:
                assert max(newest, written) == 0, before
                continue
            assert step_of(found.prefix) >= max(newest - 2, written), before
            assert read_sidecar(found.prefix).examples == 8 * step_of(found.prefix)
            assert tf.train.load_checkpoint(str(found.prefix)).get_tensor("table").shape == (ROWS, WIDTH)
            newest = step_of(found.prefix)
        assert newest, "some child was killed after its first checkpoint"
        process.stdin.close()
