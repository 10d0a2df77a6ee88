"""A rank that saves deltas in several ways: `python -m tests.parallel.delta_worker RUN_DIR`."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from parallax_runner.checkpoints.delta_ops import changes_of
from parallax_runner.checkpoints.delta_save import DeltaSave
from parallax_runner.checkpoints.delta_saver import DeltaSaver
from parallax_runner.collectives import ops as collectives
from parallax_runner.launch.child import run_child
from parallax_runner.launch.control.client import ControlClient, rank_from_environ
from parallax_runner.worker.deltas import contents_of, trained_names
from tests.parallel.saving_worker import BATCH, Rank, die, fed, store

# The steps of checkpoints and of deltas. Each delta belongs to the checkpoint before it.
FULL_STEPS, DELTA_STEPS = (2, 9), (4, 7, 12)
# The steps of the deltas that a rank writes before and when one of the ranks is killed.
BEFORE, LAST = 4, 6
WAYS: dict[str, int | None] = {"copied": None, "waiting": 0, "elsewhere": None}


class DeltaRank(Rank):
    """A rank that notices which rows change."""

    # The map of a vocabulary would have many small blocks and parts.
    block_bytes, part_bytes = 1024, None

    def add_ops(self) -> None:
        self.contents = contents_of(self.plan, self.single)
        self.changes = changes_of(self.distributed, self.contents)

    def delta_saver(self, folder: Path, copy_bytes: int | None) -> DeltaSaver:
        names = trained_names(self.single)
        writer = DeltaSave(self.ops, self.changes, self.contents, names, copy_bytes)
        made = DeltaSaver(writer, folder, delta_steps=1, is_chief=self.rank == 0)
        made.begin(self.session)
        return made

    def save_full(self, folder: Path, deltas: DeltaSaver, step: int) -> None:
        """Saves a checkpoint, to which later deltas belong."""
        deltas.rest()
        saver = self.saver(folder, None)
        saver.start(0)
        saver.save(self.session, step=step, examples=step)
        deltas.begin_again(self.session, step)
        saver.rest()

    def save_delta(self, deltas: DeltaSaver, step: int) -> None:
        """Saves a delta, and trains meanwhile."""
        deltas.save(self.session, step=step, examples=step)
        self.steps(step, 1)
        deltas.rest()

    def note(self, path: Path) -> None:
        """Stores the values of all variables."""
        values = self.ops.snapshot(self.session)
        if self.rank == 0:
            store(path, values)


def save_in_many_ways(run_dir: Path, rank: DeltaRank) -> None:
    """Writes deltas and, beside them, the values that they must have, and copies of the folder after each delta."""
    for way, copy_bytes in WAYS.items():
        rank.begin(None)
        folder = run_dir / way
        own_folder = folder if rank.rank == 0 or way != "elsewhere" else run_dir / "another_disk"
        deltas = rank.delta_saver(own_folder / "ckpt", copy_bytes)
        for step in range(max(DELTA_STEPS) + 1):
            if step in FULL_STEPS:
                rank.save_full(own_folder / "ckpt", deltas, step)
            if step in DELTA_STEPS:
                rank.note(run_dir / f"{way}_{step}.npz")
                rank.save_delta(deltas, step)
                if rank.rank == 0:
                    shutil.copytree(folder / "ckpt", folder / f"at_{step}")
            else:
                rank.steps(step, 1)


def save_and_die_at(folder: Path, rank: DeltaRank, share: float, victim: int) -> None:
    """Writes a checkpoint and a delta. While the next delta is written, the process of the rank `victim` is killed:
    after `share` of the time that the first one took."""
    deltas, secs = rank.delta_saver(folder / "ckpt", None), 0.0
    rank.steps(0, 2)
    rank.save_full(folder / "ckpt", deltas, 2)
    rank.steps(2, BEFORE - 2)
    for step in (BEFORE, LAST):
        rank.note(folder / f"{step}.npz")
        if step == LAST and rank.rank == victim:
            threading.Timer(share * secs, die).start()
        began = time.perf_counter()
        rank.save_delta(deltas, step)
        secs = time.perf_counter() - began
        rank.steps(step + 1, 1)
    time.sleep(2 * secs)


def ids_of(rank: DeltaRank, first: int, last: int, ranks: int) -> list[int]:
    """Returns the ids of all ranks in the steps from `first` up to but not including `last`."""
    feature = rank.distributed.features[0]["ids"]
    batches = [fed(rank.distributed, step, other)[feature] for step in range(first, last) for other in range(ranks)]
    assert all(len(batch) == BATCH for batch in batches)
    return [int(one) for batch in batches for one in batch]


def work(run_dir: Path, number: int, client: ControlClient) -> None:
    """Does what `cases.json` says."""
    orders: list[dict[str, Any]] = json.loads((run_dir / "cases.json").read_text())
    collectives.join(may_fuse=False)
    for order in orders:
        # Most of the time of a launch goes into the graph, and that of a vocabulary takes longest.
        rank, folder = DeltaRank(number, order["ranks"], grows="victim" not in order), run_dir / order["name"]
        if "victim" in order:
            save_and_die_at(folder, rank, order["share"], order["victim"])
            raise AssertionError("every rank goes on, although one has died")
        save_in_many_ways(folder, rank)
        if number == 0:
            begins = {4: 2, 7: 2, 12: 9}
            ids = {str(step): ids_of(rank, begin, step, order["ranks"]) for step, begin in begins.items()}
            (folder / "ids.json").write_text(json.dumps(ids))
    client.done()


if __name__ == "__main__":
    run_child("worker", rank_from_environ(), Path(sys.argv[1]), work)
