"""Settings of all tests: no time-out by duration, ranks that sleep while they wait, no collection of imported objects,
no state of a run that outlives its file, and the selection of a tier (docs/development.md)."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable

import pytest
from hydra.core.hydra_config import HydraConfig
from hypothesis import settings

from parallax_runner.collectives.chosen import BACKENDS, WITHOUT_PLAN, choose
from tests import tiers

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# A rank that waits for another one gives up its core for 0.5 ms. Open MPI's own way, sched_yield in a loop, takes up to
# 40 % of the CPU time of a launch beside other tests: docs/design/0042-forked-launches.md.
SLEEPS_WHILE_IT_WAITS = {
    "OMPI_MCA_threads_pthreads_yield_strategy": "nanosleep",
    "OMPI_MCA_threads_pthreads_nanosleep_time": "500000",
}
os.environ.update(SLEEPS_WHILE_IT_WAITS)
# A shell starts commands in its background with SIGINT ignored, which scripts under test would inherit.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The node ids of all collected tests, also of those that the tier leaves out.
COLLECTED = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=("default", "changed", "all"),
        default="all",
        help="default: all but the slow tests of tests/slow.toml; changed: those of them that cover a changed file",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests of other tiers."""
    config.stash[COLLECTED] = [item.nodeid for item in items]
    chosen = _chosen(config)
    if chosen is None:
        return
    of_tier = {item for item in items if chosen(item.nodeid)}
    config.hook.pytest_deselected(items=[item for item in items if item not in of_tier])
    items[:] = [item for item in items if item in of_tier]


def pytest_collection_finish() -> None:
    """Exempts the imported modules and the tests, almost a million objects, from garbage collection. Visiting them took
    a tenth of the time of tests that build graphs."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _as_in_a_new_process() -> None:
    """Resets before each file what a run sets for its whole process: the backend, and the configuration of Hydra's job.

    A process of the tests executes many files, and a run has a process of its own.
    """
    choose(BACKENDS[WITHOUT_PLAN])
    HydraConfig.instance().cfg = None


def _chosen(config: pytest.Config) -> Callable[[str], bool] | None:
    """Returns a function that says whether a test's node id is in the tier, or None if all tests are."""
    tier = config.getoption("--tier")
    if tier == "all":
        return None
    entries = tiers.slow_tests()
    if tier == "default":
        return lambda node_id: not any(entry.has(node_id) for entry in entries)
    run = tiers.of_change(entries, tiers.changed_files()).run
    return lambda node_id: any(entry.has(node_id) for entry in run)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Reports the tests that the tier «changed» leaves out and those that it runs."""
    if config.getoption("--tier") != "changed":
        return []
    chosen = tiers.of_change(tiers.slow_tests(), tiers.changed_files())
    limit = f"more than {tiers.CHANGED_SECS / 60:.0f} minutes"
    return [
        *(f"slow tests of this change: {entry.tests}, {entry.secs:.0f} s" for entry in chosen.run),
        *(f"left out, as the total would be {limit}: {entry.tests}, {entry.secs:.0f} s" for entry in chosen.left_out),
    ]
