"""Summarizes all rounds over the same links as a table and a plot, with medians, spreads and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.hosts.peers import PEERS
from benchmarks.hosts.rounds import Measurement
from benchmarks.modes import IDEAL, Spread, spread
from benchmarks.tables import UNKNOWN, Rows
from parallax_runner.plan.format_bytes import format_bytes


def ratios(measurements: Sequence[Measurement], mode: str, other: str) -> Spread | None:
    """Returns the ratio of the speeds of `mode` and `other` within rounds, or None if no round has both."""
    rates = {(one.mode, one.round): one.rate for one in measurements}
    common = [number for name, number in rates if name == mode and (other, number) in rates]
    return spread([rates[mode, number] / rates[other, number] for number in common]) if common else None


def rows_of_hosts(measurements: Sequence[Measurement]) -> Rows:
    """Returns one row per mode and peer, with a column for each measured peer and for the ideal."""
    modes = list(dict.fromkeys(one.mode for one in measurements))
    others = [mode for mode in (IDEAL, *PEERS) if mode in modes]
    body = []
    for mode in modes:
        own = [one for one in measurements if one.mode == mode]
        rate = spread([one.rate for one in own])
        body.append(
            (
                mode,
                f"{rate.median:,.0f}",
                f"{rate.low:,.0f} – {rate.high:,.0f}",
                f"{statistics.median(one.step_ms for one in own):.1f}",
                _bytes([one.sent_bytes for one in own]),
                _bytes([one.counted_bytes for one in own]),
                str(own[-1].predicted or UNKNOWN),
                _ms([one.occupancy.full_ms for one in own if one.occupancy]),
                _ms([one.occupancy.busy_ms for one in own if one.occupancy]),
                _ms([one.occupancy.neither_ms for one in own if one.occupancy]),
                *(_times(ratios(measurements, mode, other)) for other in others),
            )
        )
    unit = measurements[0].unit
    head = ("mode", unit, "min – max", "ms a step", "interface sent", "counted", "predicted")
    return Rows((*head, "link full", "busy", "idle", *(f"× {other}" for other in others)), tuple(body))


def draw(measurements: Sequence[Measurement], path: Path, caption: str) -> None:
    """Writes a PNG that shows the speed of each mode and the bytes that an interface sends. Peers are grey."""
    modes = list(dict.fromkeys(one.mode for one in measurements))
    figure = Figure(figsize=(8.0, 4.0), layout="constrained")
    speed, sent = figure.subplots(1, 2)
    for place, mode in enumerate(modes):
        own = [one for one in measurements if one.mode == mode]
        color = "tab:gray" if mode in (*PEERS, IDEAL) else "tab:blue"
        _bar(speed, place, [one.rate for one in own], color)
        _bar(sent, place, [one.sent_bytes / 1e6 for one in own if one.sent_bytes is not None], color)
    for axes, label in ((speed, measurements[0].unit), (sent, "MB sent per step and rank")):
        axes.set_xticks(range(len(modes)), modes, rotation=30, ha="right", fontsize=8)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    figure.suptitle(caption, fontsize=8, wrap=True)
    figure.savefig(path, dpi=150)


def _bar(axes, place: int, numbers: Sequence[float], color: str) -> None:  # type: ignore[no-untyped-def]
    if numbers:
        axes.bar(place, statistics.median(numbers), width=0.6, color=color, alpha=0.35)
        axes.plot([place] * len(numbers), numbers, "o", color=color)


def _times(one: Spread | None) -> str:
    return UNKNOWN if one is None else f"{one.median:.2f} ({one.low:.2f} – {one.high:.2f})"


def _ms(numbers: Sequence[float]) -> str:
    return f"{statistics.median(numbers):.0f} ms" if numbers else UNKNOWN


def _bytes(numbers: Sequence[float | None]) -> str:
    known = [number for number in numbers if number is not None]
    return format_bytes(round(statistics.median(known))) if known else UNKNOWN
