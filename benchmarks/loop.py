"""`scripts/bench loop`: compares the training loop with bare `session.run` calls on the same graph and data."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import machine
from benchmarks.compose import compose
from benchmarks.tables import Rows

if TYPE_CHECKING:
    from parallax_runner.launch.control.client import ControlClient
    from parallax_runner.train.loop import Loop

MODELS = {"default": (), "tiny (experiment=quick)": ("experiment=quick",)}
LOG_EVERY = 10  # steps, as in conf/train/default.yaml
WARM_UP_STEPS = 20


@dataclass(frozen=True)
class LoopCost:
    """Microseconds per step of one model in each pair of blocks: bare steps, and the same steps in the loop."""

    model: str
    block_steps: int
    bare_us: tuple[float, ...]
    loop_us: tuple[float, ...]

    @property
    def added_us(self) -> tuple[float, ...]:
        """The time that the loop adds to a step in each pair, in microseconds. Noise can make it negative."""
        return tuple(loop - bare for bare, loop in zip(self.bare_us, self.loop_us, strict=True))

    @property
    def cost_us(self) -> float:
        """The median over pairs of the time that the loop adds to a step, in microseconds."""
        return statistics.median(self.added_us)

    @property
    def cost_share(self) -> float:
        """`cost_us` as a share of a bare step."""
        return self.cost_us / statistics.median(self.bare_us)


def measure_loop(
    *, repeats: int, steps: int, overrides: Sequence[str], folder: Path, tell: Callable[[str], None]
) -> list[LoopCost]:
    """Measures each model with `repeats` pairs of blocks of `steps` steps. Every other pair is in reverse order."""
    from parallax_runner.launch.job import thread_environment

    os.environ.update(thread_environment(1))
    found: list[LoopCost] = []
    for model, choice in MODELS.items():
        warning = machine.idle_warning(machine.look_around())
        if warning:
            tell(warning)
        with _loop((*choice, *overrides), folder / f"loop_{len(found)}") as loop:
            found.append(_compare(model, loop, repeats, steps))
        tell(f"{model}: {found[-1].cost_us:.0f} µs a step, {found[-1].cost_share:.2%} of it")
    return found


@contextmanager
def _loop(overrides: Sequence[str], run_dir: Path) -> Iterator[Loop]:
    """Makes a loop under comm=local with one thread, as rank.py does. The loop's reports are discarded."""
    from parallax_runner.driver.make_plan import plan_run
    from parallax_runner.graph.build import build_graph, load_dataset

    config = compose(("comm=local", "tracking=off", "ckpt=off", *overrides, f"run_dir={run_dir}"))
    dataset = load_dataset(config)
    single = build_graph(config, dataset)
    plan = plan_run(config, single)

    from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
    from parallax_runner.rewrite.passes import rewrite_for_rank
    from parallax_runner.train.feed import Feed
    from parallax_runner.train.loop import FINITE_LOSSES, Loop
    from parallax_runner.train.sessions import initialize, open_session
    from parallax_runner.train.step_runner import StepRunner

    distributed = rewrite_for_rank(single, plan, rank=0, seed=config.train.seed, first_step=0)
    checkpoints = CheckpointOps(distributed)
    distributed.graph.finalize()
    with _control() as control, open_session(control, plan, distributed, threads=1) as session:
        initialize(session, distributed, checkpoints, None)
        feed = Feed(dataset, config.data["batch_size"], rank=0, size=1)
        yield Loop(StepRunner(session, distributed, control, LOG_EVERY, FINITE_LOSSES), feed, validates=False)


@contextmanager
def _control() -> Iterator[ControlClient]:
    from parallax_runner.launch.control.client import ControlClient

    ours, theirs = socket.socketpair()
    with ours, theirs:
        sink = subprocess.Popen(["cat"], stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        theirs.close()
        yield ControlClient(ours)
        ours.shutdown(socket.SHUT_RDWR)
        sink.wait()


def _compare(model: str, loop: Loop, repeats: int, steps: int) -> LoopCost:
    # Both kinds of blocks use the same sequence of batches. Repeating a batch would make a block faster, because it
    # would look up the same rows again.
    positions = [number * loop.feed.global_batch for number in range(max(steps, WARM_UP_STEPS))]
    batches = [batch for position in positions for batch in loop.feed.train_batches(position)]
    bare_steps(loop, batches[:WARM_UP_STEPS])
    loop_steps(loop, WARM_UP_STEPS)
    bare_us, loop_us = [], []
    for number in range(repeats):
        if number % 2:
            loop_us.append(loop_steps(loop, steps))
        bare_us.append(bare_steps(loop, batches[:steps]))
        if not number % 2:
            loop_us.append(loop_steps(loop, steps))
    return LoopCost(model, steps, tuple(bare_us), tuple(loop_us))


def bare_steps(loop: Loop, batches: Sequence[dict]) -> float:
    """Returns the microseconds per step of bare `session.run` calls on batches made in advance."""
    session, graph = loop.runner.session, loop.runner.distributed
    fetches = [graph.loss, graph.sent_bytes, graph.train_op]
    (features,) = graph.features
    feeds = [{features[name]: array for name, array in batch.items()} for batch in batches]
    started = time.perf_counter()
    for feed in feeds:
        session.run(fetches, feed)
    return 1e6 * (time.perf_counter() - started) / len(feeds)


def loop_steps(loop: Loop, steps: int) -> float:
    """Returns the microseconds per step of the full loop, including its input thread, reports, start and end."""
    started = time.perf_counter()
    loop.run(first_step=0, steps=steps, first_example=0)
    return 1e6 * (time.perf_counter() - started) / steps


def rows_of_loop(found: Sequence[LoopCost]) -> Rows:
    """Returns one row per model."""
    body = tuple(
        (
            one.model,
            f"{statistics.median(one.bare_us):,.0f}",
            f"{statistics.median(one.loop_us):,.0f}",
            f"{one.cost_us:,.0f}",
            f"{min(one.added_us):,.0f} – {max(one.added_us):,.0f}",
            f"{one.cost_share:.2%}",
            f"{len(one.bare_us)} × {one.block_steps}",
        )
        for one in found
    )
    head = ("model", "bare µs a step", "loop µs", "loop's own µs", "min – max", "of a bare step", "blocks × steps")
    return Rows(head, body)


def as_json(found: Sequence[LoopCost]) -> list[dict[str, Any]]:
    """Returns all raw numbers."""
    return [asdict(one) | {"cost_us": one.cost_us, "cost_share": one.cost_share} for one in found]
