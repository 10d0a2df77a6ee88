"""`scripts/bench --hosts N`: measures our modes and the peers in turn, in several rounds, over the same links."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.hosts.cluster import Cluster
from benchmarks.hosts.occupancy import Occupancy, Onlooker, occupancy
from benchmarks.hosts.peers import PEERS, run_peer
from benchmarks.modes import IDEAL, STANDINGS, WARM_UP_STEPS, chosen
from benchmarks.overlap import Told, over_common_time
from benchmarks.runs import Predicted, Run

ALIKE = ("cluster.threads_per_worker=1", "data.validation_examples=0", "tracking=off", "ckpt=off")
WITH_SERVERS = ("ps", "hybrid")
BACKENDS = ("mpi_native", "mpi_horovod", "sharded_native", "sharded_horovod")
OURS = ("mpi", "ps", "hybrid", "sharded", "sharded_off", "sharded_on", "auto", *BACKENDS)
MODES = (IDEAL, *OURS, *PEERS)


@dataclass(frozen=True)
class Sample:
    """A progress report: a run was at `step` at the time `secs`, when the hosts' interfaces had sent `sent_bytes`."""

    step: int
    secs: float
    sent_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Measurement:
    """The result of one mode or peer in one round.

    `rate` is the words per second of all ranks together, or the examples per second if the data has no words.
    `of_each_host` contains the bytes that each host's interface sent per step, and `sent_bytes` is their mean. Without
    interface counters, `of_each_host` is empty, and `sent_bytes` and `occupancy` are None. `counted_bytes` is our run's
    own count per step and worker, and `predicted` is its plan's prediction.
    """

    round: int
    mode: str
    rate: float
    unit: str
    step_ms: float
    sent_bytes: float | None
    of_each_host: tuple[float, ...]
    occupancy: Occupancy | None
    counted_bytes: float | None
    predicted: Predicted | None
    loss_last: float | None
    load_average: float
    busy_share: float


def measure(
    modes: Sequence[str],
    cluster: Cluster,
    *,
    repeats: int,
    steps: int,
    overrides: Sequence[str],
    folder: Path,
    tell: Callable[[str], None],
) -> Iterator[Measurement]:
    """Runs each mode and peer in each round, and yields each result when its run ends.

    `folder` contains the runs' folders. A mode may have its own number of steps, as in `horovod_dense:6`. Raises
    RunFailed.
    """
    for number in range(repeats):
        for mode, own_steps in (split_steps(mode, steps) for mode in modes):
            around = machine.look_around()
            warning = machine.idle_warning(around)
            if warning:
                tell(warning)
            one = _measure_one(mode, number, cluster, own_steps, overrides, folder / f"{number}_{mode}", around)
            sent = "" if one.sent_bytes is None else f", {one.sent_bytes / 1e6:.2f} MB sent per step and rank"
            tell(f"round {number + 1}/{repeats} {mode}: {one.rate:,.0f} {one.unit}, {one.step_ms:.1f} ms a step{sent}")
            yield one


def split_steps(mode: str, steps: int) -> tuple[str, int]:
    """Splits `mpi` or `mpi:20` into a mode and its steps. Raises ValueError for an unknown mode or an invalid
    number."""
    name, colon, number = mode.partition(":")
    if name not in MODES:
        raise ValueError(f"no such mode: {name!r}; expected some of {', '.join(MODES)}")
    if colon and not (number.isdecimal() and int(number) > 0):
        raise ValueError(f"{mode!r}: expected a number of steps after the colon")
    return name, int(number) if colon else steps


def _measure_one(
    mode: str,
    number: int,
    cluster: Cluster,
    steps: int,
    overrides: Sequence[str],
    folder: Path,
    around: dict[str, float],
) -> Measurement:
    samples: list[Sample] = []

    def on_told(told: Told) -> None:
        samples.append(Sample(told.step, told.secs, cluster.sent_bytes()))

    with Onlooker(cluster.carried_bytes) as onlooker:
        if mode == IDEAL:
            facts = _run_ideal(cluster.count, steps, overrides, folder)
        elif mode in PEERS:
            common = ["--steps", str(steps), "--log-every", str(_log_every(steps)), *overrides]
            facts = run_peer(mode, cluster, common, folder, on_told)
        else:
            facts = _run_ours(mode, cluster, steps, overrides, folder, on_told)
    warm_up_steps = min(WARM_UP_STEPS, steps // 2)
    common = over_common_time(facts["told"], warm_up_steps)
    counted = from_step(samples, warm_up_steps)
    sent = sent_in_a_step(counted)
    return Measurement(
        round=number,
        mode=mode,
        rate=sum(common.steps_per_sec) * facts["of_a_step"],
        unit=facts["unit"],
        step_ms=1000 / statistics.fmean(common.steps_per_sec),
        sent_bytes=statistics.fmean(sent) if sent else None,
        of_each_host=sent,
        occupancy=_occupancy(onlooker, counted, cluster),
        counted_bytes=facts.get("counted_bytes"),
        predicted=facts.get("predicted"),
        loss_last=facts["loss_last"],
        **around,
    )


def from_step(samples: Sequence[Sample], step: int) -> list[Sample]:
    """Drops the samples before `step`, which cover set-up and the first steps."""
    return [sample for sample in samples if sample.step >= step]


def sent_in_a_step(samples: Sequence[Sample]) -> tuple[float, ...]:
    """Returns the bytes per step that each host sent between the first and the last of `samples`."""
    counted = [sample for sample in samples if sample.sent_bytes]
    if len(counted) < 2:
        return ()
    first, last = counted[0], counted[-1]
    steps = last.step - first.step
    return tuple((end - begin) / steps for begin, end in zip(first.sent_bytes, last.sent_bytes, strict=True))


def _occupancy(onlooker: Onlooker, samples: Sequence[Sample], cluster: Cluster) -> Occupancy | None:
    if len(samples) < 2:
        return None
    return occupancy(
        onlooker.glances,
        begin_secs=samples[0].secs,
        end_secs=samples[-1].secs,
        steps=samples[-1].step - samples[0].step,
        link_mbit=cluster.link_mbit,
        cores=os.cpu_count() or 1,
    )


def _pieces(mode: str, cluster: Cluster, overrides: Sequence[str]) -> list[str]:
    """Returns overrides that split each table into one shard per server, as the peer does. Returns an empty list if
    `overrides` sets `partition`."""
    if mode.partition("_")[0] not in WITH_SERVERS or any(one.lstrip("+").startswith("partition") for one in overrides):
        return []
    return ["partition=fixed", f"partition.num={cluster.count}"]


def _fixed(steps: int) -> list[str]:
    return [*ALIKE, f"train.steps={steps}", f"train.log_every={_log_every(steps)}"]


def _log_every(steps: int) -> int:
    return max(1, steps // STANDINGS)


def _run_ours(
    mode: str,
    cluster: Cluster,
    steps: int,
    overrides: Sequence[str],
    folder: Path,
    on_told: Callable[[Told], None],
) -> dict[str, Any]:
    given = [*chosen(mode), *cluster.overrides(), *_pieces(mode, cluster, overrides), *_fixed(steps), *overrides]
    with Run(folder, given, cwd=folder.parent, on_told=on_told) as run:
        summary = run.wait()
    counted = summary["sent_bytes_per_step"]
    facts = {"counted_bytes": counted, "predicted": run.predicted()}
    return facts | _facts_of(summary) | {"told": [run.told]}


def _run_ideal(count: int, steps: int, overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """Runs one single-process run per host, all at once on the same cores, without exchanges."""
    with ExitStack() as stack:
        given = ["comm=local", *_fixed(steps), *overrides]
        runs = [stack.enter_context(Run(folder / str(copy), given, cwd=folder.parent)) for copy in range(count)]
        summaries = [run.wait() for run in runs]
    return _facts_of(summaries[0]) | {"told": [run.told for run in runs]}


def _facts_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    unit, key = "words/s", "words_per_sec"
    if summary[key] is None:
        unit, key = "examples/s", "examples_per_sec"
    return {"unit": unit, "of_a_step": summary[key] / summary["steps_per_sec"], "loss_last": summary["loss_last"]}


def as_json(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Returns all raw numbers."""
    return [asdict(one) for one in measurements]
