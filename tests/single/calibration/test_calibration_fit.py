"""Constants come back from samples that they made."""

from __future__ import annotations

import dataclasses
import itertools
import random
from pathlib import Path

import pytest

from parallax_runner.calibration.constants_table import constants_table
from parallax_runner.calibration.fit_constants import VOLUMES, fit
from parallax_runner.calibration.samples import ASKED, EXCHANGE_BYTES, TENSORS, UPDATES, Sample
from parallax_runner.planning.cost import constants
from parallax_runner.planning.cost.constants import DEFAULTS, EXCHANGES, Constants, Exchange

TRUE = dataclasses.replace(
    DEFAULTS,
    **{
        name: Exchange(
            overhead_secs=1e-3 * number,
            latency_secs=40e-6 * number,
            each_secs=0.0 if name == "alltoall" else 70e-6 * number,
            secs_per_byte=2e-9 / number,
        )
        for number, name in enumerate(EXCHANGES, start=1)
    },
    server_secs_per_byte=3e-9,
    merge_secs_per_byte=2e-9,
    apply_dense_secs_per_byte=0.4e-9,
    apply_sparse_secs_per_byte=0.8e-9,
    apply_sparse_secs_per_row=0.3e-6,
    ask_secs_per_row=0.5e-6,
)


def samples_of(true: Constants, *, ranks: tuple[int, ...], noise: float = 0.0) -> list[Sample]:
    draw = random.Random(1)
    made = []
    for name in EXCHANGES:
        exchange = getattr(true, name)
        in_flight = () if name == "alltoall" else TENSORS
        sent = [(size, 1) for size in EXCHANGE_BYTES] + [
            (tensors * EXCHANGE_BYTES[0], tensors) for tensors in in_flight
        ]
        for number, (size, tensors) in itertools.product(ranks, sent):
            rounds, volume = VOLUMES[name](number, size, 1)
            secs = exchange.overhead_secs + rounds * exchange.latency_secs + volume * exchange.secs_per_byte
            secs = (secs + tensors * exchange.each_secs) * draw.uniform(1 - noise, 1 + noise)
            made.append(Sample(name, number, size, 0, secs, tensors=tensors))
    for rows, width in UPDATES:
        size = 4 * rows * width
        sparse = 1e-5 + rows * true.apply_sparse_secs_per_row + size * true.apply_sparse_secs_per_byte
        made.append(Sample("apply_sparse", 1, size, rows, sparse))
        made.append(Sample("server", 1, 2 * size, 2 * rows, 1e-5 + 2 * size * true.server_secs_per_byte))
        made.append(Sample("merge", 1, size, rows, 1e-5 + size * true.merge_secs_per_byte))
    made += [Sample("ask", 1, 0, rows, 1e-5 + rows * true.ask_secs_per_row) for rows in ASKED]
    made += [Sample("apply_dense", 1, size, 0, 1e-5 + size * true.apply_dense_secs_per_byte) for size in EXCHANGE_BYTES]
    return made


def assert_close(found: Constants, true: Constants, rel: float) -> None:
    for name in EXCHANGES:
        mine, theirs = getattr(found, name), getattr(true, name)
        assert mine.secs_per_byte == pytest.approx(theirs.secs_per_byte, rel=rel)
    for name in ("server", "merge", "apply_dense", "apply_sparse"):
        field = f"{name}_secs_per_byte"
        assert getattr(found, field) == pytest.approx(getattr(true, field), rel=rel)
    for field in ("apply_sparse_secs_per_row", "ask_secs_per_row"):
        assert getattr(found, field) == pytest.approx(getattr(true, field), rel=rel)


def test_exact_samples_give_exact_constants() -> None:
    found = fit(samples_of(TRUE, ranks=(2, 4)), source="a test")
    assert_close(found, TRUE, 1e-6)
    for name in ("allreduce", "allgather", "alltoall"):
        assert getattr(found, name).latency_secs == pytest.approx(getattr(TRUE, name).latency_secs, rel=1e-6)
        assert getattr(found, name).overhead_secs == pytest.approx(getattr(TRUE, name).overhead_secs, rel=1e-6)
        assert getattr(found, name).each_secs == pytest.approx(getattr(TRUE, name).each_secs, rel=1e-6)
    assert len(found.spread) > len(EXCHANGES)
    assert all(error < 1e-6 for error in found.spread.values())


def test_noise_shows_in_the_spread() -> None:
    found = fit(samples_of(TRUE, ranks=(2, 4), noise=0.2), source="a test")
    assert_close(found, TRUE, 0.4)
    assert 0.01 < found.spread["allreduce.secs_per_byte"] < 0.5


def test_one_number_of_ranks_cannot_tell_rounds_from_overhead() -> None:
    found = fit(samples_of(TRUE, ranks=(2,)), source="a test")
    assert_close(found, TRUE, 1e-6)
    assert found.allreduce.latency_secs == pytest.approx(DEFAULTS.allreduce.latency_secs)
    total = found.allreduce.overhead_secs + 2 * found.allreduce.latency_secs
    assert total == pytest.approx(TRUE.allreduce.overhead_secs + 2 * TRUE.allreduce.latency_secs)


def test_what_was_not_measured_is_the_defaults() -> None:
    only = [sample for sample in samples_of(TRUE, ranks=(2, 4)) if sample.kind == "allreduce"]
    found = fit(only, source="a test")
    assert (found.pull, found.merge_secs_per_byte) == (DEFAULTS.pull, DEFAULTS.merge_secs_per_byte)
    assert found.ask_secs_per_row == DEFAULTS.ask_secs_per_row


def test_constants_come_back_from_their_file_and_are_shown(tmp_path: Path) -> None:
    found = fit(samples_of(TRUE, ranks=(2, 4), noise=0.1), source="a test")
    constants.save(found, tmp_path / "constants.json")
    assert constants.load(tmp_path / "constants.json") == found
    assert constants_table(found).row_count == len(EXCHANGES) + 6


def test_several_servers_share_what_ranks_pull() -> None:
    samples = [
        dataclasses.replace(sample, ranks=4, servers=4)
        for sample in samples_of(TRUE, ranks=(1,))
        if sample.kind in ("pull", "push")
    ]
    found = fit(samples, source="a test")
    assert found.pull.secs_per_byte == pytest.approx(TRUE.pull.secs_per_byte)
    assert found.push.secs_per_byte == pytest.approx(TRUE.push.secs_per_byte)
