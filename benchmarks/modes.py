"""`scripts/bench`: compares training modes with the ideal, which is two independent processes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import machine
from benchmarks.overlap import over_common_time
from benchmarks.runs import Predicted, Run, RunFailed

IDEAL = "ideal"
WORKERS = 2
# The first steps include set-up. Figures in summary.json omit the same number of steps, or half of a short run's steps.
WARM_UP_STEPS = 5
STANDINGS = 25  # number of progress reports of a run
ALIKE = (
    f"cluster.workers={WORKERS}",
    "cluster.servers=1",
    "cluster.threads_per_worker=1",
    "data.validation_examples=0",
    "tracking=off",
    "ckpt=off",
)


# What stands after the underscore in the name of a mode.
VARIANTS = {
    "": (),
    "off": ("comm.lookahead=off",),
    "on": ("comm.lookahead=on",),
    "native": ("comm.backend=native",),
    "horovod": ("comm.backend=horovod",),
}


def chosen(mode: str) -> list[str]:
    """Returns the overrides of a mode. For example, `sharded_off` is `sharded` without lookahead."""
    comm, _, variant = mode.partition("_")
    return [f"comm={comm}", *VARIANTS[variant]]


@dataclass(frozen=True)
class Measurement:
    """The result of one mode in one round.

    `rate` is the words per second of both workers together, or the examples per second if the data has no words.
    `summary_rate` is the rate in the runs' own summaries, which use the time within steps. `overlap` (`ideal` only) is
    the fraction of the time during which both processes were training. Only this time is used for `rate`. Bytes are per
    step and worker.
    """

    round: int
    mode: str
    rate: float
    summary_rate: float
    unit: str
    step_ms_p50: float
    sent_bytes: float
    predicted: Predicted | None
    overlap: float | None
    load_average: float
    busy_share: float


def measure(
    modes: Sequence[str],
    *,
    repeats: int,
    steps: int,
    overrides: Sequence[str],
    folder: Path,
    tell: Callable[[str], None],
) -> list[Measurement]:
    """Runs the ideal and then each mode, round after round, in subfolders of `folder`. Raises RunFailed."""
    found = []
    for number in range(repeats):
        for mode in (IDEAL, *modes):
            around = machine.look_around()
            warning = machine.idle_warning(around)
            if warning:
                tell(warning)
            one = _measure_one(mode, number, steps, overrides, folder, around)
            shown = f"{one.rate:,.0f} {one.unit}, {one.step_ms_p50:.1f} ms a step"
            tell(f"round {number + 1}/{repeats} {mode}: {shown}")
            found.append(one)
    return found


def _measure_one(
    mode: str, number: int, steps: int, overrides: Sequence[str], folder: Path, around: dict[str, float]
) -> Measurement:
    count = WORKERS if mode == IDEAL else 1
    of_mode = chosen("local" if mode == IDEAL else mode)
    fixed = [*ALIKE, *of_mode, f"train.steps={steps}", f"train.log_every={max(1, steps // STANDINGS)}"]
    with ExitStack() as stack:
        runs = [
            stack.enter_context(Run(folder / f"{number}_{mode}_{copy}", [*fixed, *overrides], cwd=folder))
            for copy in range(count)
        ]
        summaries = [run.wait() for run in runs]
    unit, key = ("words/s", "words_per_sec")
    if summaries[0][key] is None:
        unit, key = ("examples/s", "examples_per_sec")
    if summaries[0][key] is None:
        raise RunFailed(f"{runs[0].run_dir}: its summary has no speed")
    # All rates come from the times of progress reports, so the ideal and the modes are measured in the same way.
    common = over_common_time([run.told for run in runs], min(WARM_UP_STEPS, steps // 2))
    of_a_step = summaries[0][key] / summaries[0]["steps_per_sec"]
    return Measurement(
        round=number,
        mode=mode,
        rate=sum(common.steps_per_sec) * of_a_step,
        summary_rate=sum(summary[key] for summary in summaries),
        unit=unit,
        step_ms_p50=statistics.median(summary["step_ms_p50"] for summary in summaries),
        sent_bytes=statistics.fmean(summary["sent_bytes_per_step"] for summary in summaries),
        predicted=runs[0].predicted(),
        overlap=common.share if mode == IDEAL else None,
        **around,
    )


@dataclass(frozen=True)
class Spread:
    """Median and extremes of several repeats."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class ModeResult:
    """The result of one mode over all rounds. `share` is relative to the ideal of the same round."""

    mode: str
    unit: str
    rate: Spread
    share: Spread
    step_ms_p50: float
    sent_bytes: float
    predicted: Predicted | None


def summarize(measurements: Sequence[Measurement]) -> list[ModeResult]:
    """Returns one result per mode, in the order in which the modes first ran."""
    ideal = {one.round: one.rate for one in measurements if one.mode == IDEAL}
    results = []
    for mode in dict.fromkeys(one.mode for one in measurements):
        own = [one for one in measurements if one.mode == mode]
        results.append(
            ModeResult(
                mode=mode,
                unit=own[0].unit,
                rate=spread([one.rate for one in own]),
                share=spread([one.rate / ideal[one.round] for one in own]),
                step_ms_p50=statistics.median(one.step_ms_p50 for one in own),
                sent_bytes=statistics.median(one.sent_bytes for one in own),
                predicted=own[-1].predicted,
            )
        )
    return results


def spread(numbers: Sequence[float]) -> Spread:
    """Returns the median, minimum and maximum."""
    return Spread(statistics.median(numbers), min(numbers), max(numbers))


def as_json(measurements: Sequence[Measurement]) -> list[dict]:
    """Returns all raw numbers."""
    return [asdict(one) for one in measurements]
