"""Fits constants to measured samples by least squares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from parallax_runner.calibration.samples import Sample
from parallax_runner.planning.cost.constants import DEFAULTS, EXCHANGES, Constants, Exchange
from parallax_runner.routes.registry import all_routes
from parallax_runner.routes.route import Volume

VOLUMES: dict[str, Volume] = {name: volume for route in all_routes() for name, volume in route.exchanges.items()}


def fit(samples: Sequence[Sample], *, source: str) -> Constants:
    """Returns the non-negative constants that minimize the squared relative errors.

    Constants that were not measured keep their defaults.

    Errors are relative, because times range from microseconds to tenths of a second, and their variation is
    proportional to their size. If several numbers of ranks were measured, the latency per round is fitted separately
    from the overhead. Otherwise, the latency keeps its default. If several tensors were in flight together, the time
    per tensor is also fitted separately.
    """
    spread: dict[str, float] = {}
    exchanges = {name: _exchange(name, samples, spread) for name in EXCHANGES}
    work = {name: _per_byte(name, samples, spread) for name in ("server", "merge", "apply_dense")}
    per_row, per_byte = _apply_sparse(samples, spread)
    ask_per_row = _ask(samples, spread)
    return Constants(
        allreduce=exchanges["allreduce"],
        allgather=exchanges["allgather"],
        alltoall=exchanges["alltoall"],
        pull=exchanges["pull"],
        push=exchanges["push"],
        server_secs_per_byte=work["server"],
        merge_secs_per_byte=work["merge"],
        apply_dense_secs_per_byte=work["apply_dense"],
        apply_sparse_secs_per_byte=per_byte,
        apply_sparse_secs_per_row=per_row,
        ask_secs_per_row=ask_per_row,
        source=source,
        spread=spread,
    )


def _rounds_and_sizes(name: str, samples: Iterable[Sample]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the number of rounds of each sample's exchange, and the number of bytes that a rank sends."""
    volumes = [VOLUMES[name](sample.ranks, sample.bytes, sample.servers) for sample in samples]
    rounds = np.array([number for number, _ in volumes], float)
    sizes = np.array([size for _, size in volumes], float)
    return rounds, sizes


def _exchange(name: str, samples: Sequence[Sample], spread: dict[str, float]) -> Exchange:
    own = [sample for sample in samples if sample.kind == name]
    default: Exchange = getattr(DEFAULTS, name)
    if not own:
        return default
    rounds, sizes = _rounds_and_sizes(name, own)
    secs = np.array([sample.secs for sample in own])
    columns = {"overhead_secs": np.ones(len(own)), "secs_per_byte": sizes}
    tensors = np.array([sample.tensors for sample in own], float)
    if len(set(tensors)) > 1:
        columns["each_secs"] = tensors
    known = np.zeros(len(own))
    if len(set(rounds)) > 1:
        columns["latency_secs"] = rounds
    else:  # latency is assumed to be at most half of the fastest sample
        known = np.minimum(default.latency_secs * rounds, secs.min() / 2)
    found = _least_squares(columns, secs - known, secs, name, spread)
    return Exchange(**{"latency_secs": float((known / rounds)[0]), "each_secs": 0.0} | found)


def _per_byte(name: str, samples: Sequence[Sample], spread: dict[str, float]) -> float:
    own = [sample for sample in samples if sample.kind == name]
    if not own:
        return float(getattr(DEFAULTS, f"{name}_secs_per_byte"))
    secs = np.array([sample.secs for sample in own])
    columns = {"overhead_secs": np.ones(len(own)), "secs_per_byte": np.array([sample.bytes for sample in own], float)}
    return _least_squares(columns, secs, secs, name, spread)["secs_per_byte"]


def _ask(samples: Sequence[Sample], spread: dict[str, float]) -> float:
    own = [sample for sample in samples if sample.kind == "ask"]
    if not own:
        return DEFAULTS.ask_secs_per_row
    secs = np.array([sample.secs for sample in own])
    columns = {"overhead_secs": np.ones(len(own)), "secs_per_row": np.array([sample.rows for sample in own], float)}
    return _least_squares(columns, secs, secs, "ask", spread)["secs_per_row"]


def _apply_sparse(samples: Sequence[Sample], spread: dict[str, float]) -> tuple[float, float]:
    own = [sample for sample in samples if sample.kind == "apply_sparse"]
    if not own:
        return DEFAULTS.apply_sparse_secs_per_row, DEFAULTS.apply_sparse_secs_per_byte
    secs = np.array([sample.secs for sample in own])
    columns = {
        "overhead_secs": np.ones(len(own)),
        "secs_per_row": np.array([sample.rows for sample in own], float),
        "secs_per_byte": np.array([sample.bytes for sample in own], float),
    }
    found = _least_squares(columns, secs, secs, "apply_sparse", spread)
    return found["secs_per_row"], found["secs_per_byte"]


def _least_squares(
    columns: dict[str, np.ndarray], values: np.ndarray, secs: np.ndarray, name: str, spread: dict[str, float]
) -> dict[str, float]:
    """Returns non-negative coefficients by column, and adds their relative standard errors to `spread`."""
    from scipy.optimize import lsq_linear  # Every driver imports this module, and this import takes 0.25 s.

    terms = np.stack(list(columns.values()), axis=1) / secs[:, None]
    # Bytes and seconds are nine orders of magnitude apart.
    scales = np.abs(terms).max(axis=0)
    scaled = terms / scales
    target = values / secs
    found = lsq_linear(scaled, target, bounds=(0, np.inf)).x
    freedom = max(1, len(secs) - len(columns))
    variance = float(np.square(scaled @ found - target).sum()) / freedom
    errors = np.sqrt(variance * np.diag(np.linalg.pinv(scaled.T @ scaled)))
    for column, value, error in zip(columns, found, errors, strict=True):
        if value > 0:
            spread[f"{name}.{column}"] = float(error / value)
    return {column: float(value / scale) for column, value, scale in zip(columns, found, scales, strict=True)}
