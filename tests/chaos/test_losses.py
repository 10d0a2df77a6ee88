"""Workers of a run are lost and come back, 40 times: each example of each epoch counts once, and nothing is left."""

from __future__ import annotations

import random
import secrets
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import tensorflow.compat.v1 as tf

from tests.free_port import pick_free_port
from tests.integration.elastic import EXAMPLES
from tests.integration.runs import started
from tests.integration.test_manual import ENDS_SECS, StandBy, standing_by

ROOT = Path(__file__).parents[2]
EVENTS = 40
MOST_WORKERS, STEP_EXAMPLES = 4, 12
STEPS_PER_EPOCH = EXAMPLES // STEP_EXAMPLES
EPOCHS = 240
STEPS = EPOCHS * STEPS_PER_EPOCH
LONGEST_PAUSE_SECS = 12.0
DATA = "{{_target_: tests.integration.elastic.load, seed: 3, batch_size: 4, fast: {fast}}}"
# With this rate, each visit of an example adds 1 to its row.
RUN = (
    *("model=mine", "data=mine", "optimizer=gradient_descent", f"optimizer.learning_rate={STEP_EXAMPLES}"),
    *("comm=sharded", "cluster=manual", "cluster.workers=3", "cluster.servers=0", "cluster.min_workers=1"),
    *(f"cluster.max_workers={MOST_WORKERS}", "cluster.wait_secs=1", "train.max_restarts=20", f"train.steps={STEPS}"),
    *("ckpt.save_steps=10", "train.log_every=50", "tracking=off"),
)


class Losses:
    """Lets processes that stand by come, be killed and be warned, at random."""

    def __init__(self, made: StandBy, chance: random.Random) -> None:
        self._made, self._chance = made, chance
        self._alive = [self._start() for _ in range(3)]

    def next(self) -> str:
        """Lets something happen, and returns what."""
        self._alive = [process for process in self._alive if process.is_running() and process.status() != "zombie"]
        count = len(self._alive)
        if count == 1 or (count < MOST_WORKERS and self._chance.random() < 0.5):
            self._alive.append(self._start())
            return "came"
        victim = self._alive.pop(self._chance.randrange(count))
        number = self._chance.choice([signal.SIGKILL, signal.SIGTERM])
        victim.send_signal(number)
        return number.name

    def _start(self) -> psutil.Process:
        return self._made.start("worker", "--leave-secs=30")


def test_each_example_counts_once_whoever_comes_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed of the losses: {seed}")
    chance = random.Random(seed)
    monkeypatch.setenv("PARALLAX_RENDEZVOUS_SECRET", secrets.token_hex(16))
    texts = {
        "model": "_target_: tests.integration.elastic.build_counting",
        "data": DATA.format(fast=tmp_path / "fast"),
    }
    for group, text in texts.items():
        (tmp_path / "conf" / group).mkdir(parents=True)
        (tmp_path / "conf" / group / "mine.yaml").write_text(text)
    with standing_by(f"tcp://127.0.0.1:{pick_free_port()}", tmp_path / "logs", {}) as made:
        own = ("--config-dir", str(tmp_path / "conf"), *RUN, f"cluster.rendezvous={made.address}")
        losses = Losses(made, chance)
        with started(*own, cwd=tmp_path / "run", python_path=ROOT) as running:
            running.wait_for_checkpoints(1)
            for number in range(EVENTS):
                time.sleep(chance.uniform(0.0, LONGEST_PAUSE_SECS))
                assert running.process.poll() is None, "the run has ended before its losses"
                print(f"event {number}: {losses.next()}", flush=True)
            (tmp_path / "fast").touch()
            run = running.wait(1200.0).expect_success()
            running.seconds_until_none_left(ENDS_SECS)
        made.exit_statuses()
    sizes = [size["workers"] for size in run.summary["sizes"]]
    print(f"numbers of workers: {sizes}; restarts: {run.summary['restarts']}")
    assert len(sizes) > EVENTS // 4
    reader = tf.train.load_checkpoint(str(run.ckpt_dir / f"model.ckpt-{STEPS}"))
    np.testing.assert_allclose(reader.get_tensor("visits"), EPOCHS, atol=1e-2)
