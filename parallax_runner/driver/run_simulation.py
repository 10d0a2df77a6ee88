"""`action=simulate`: predicts the speed of each communication mode on a cluster that need not exist."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.cost_model import constants_of
from parallax_runner.driver.recording import name_of_model
from parallax_runner.driver.report import wide_console
from parallax_runner.errors import ConfigError, Setting
from parallax_runner.files.whole import write_whole
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.planning.cost import measured
from parallax_runner.planning.cost.constants import GBIT_BYTES, Constants
from parallax_runner.planning.cost.measured import Measured
from parallax_runner.simulation import show
from parallax_runner.simulation.simulation import Simulation, as_json, simulate

log = logging.getLogger(__name__)

FILE_NAME = "simulation.json"
MARKDOWN = "simulation.md"
PLOT = "plots/simulation.png"
PLAIN_WIDTH = 160  # the width of the table if stderr is not a terminal


def run_simulation(config: RunConfig, run_dir: Path, measure: Callable[[], Measured]) -> Simulation:
    """Simulates 1 to cluster.workers ranks. If `simulate.profile` is set, the simulation uses the measurement in that
    file, otherwise the result of `measure`. Writes a plot, and a table as JSON and as Markdown, to `run_dir`. Raises
    ConfigError if the file is not a measurement."""
    found = _given(config.simulate.profile) if config.simulate.profile is not None else measure()
    constants = constants_of(config).with_link(
        gbit_per_sec=config.simulate.bandwidth_gbit_per_sec, latency_us=config.simulate.latency_us
    )
    simulation = simulate(
        found,
        constants,
        workers=config.cluster.workers,
        workers_per_host=config.simulate.workers_per_host,
        options=CommOptions.of(config.comm),
    )
    write_whole(run_dir / FILE_NAME, json.dumps(as_json(simulation), indent=1) + "\n")
    write_whole(run_dir / MARKDOWN, show.markdown(simulation))
    try:
        show.draw(simulation, run_dir / PLOT, _title(config, constants))
    except Exception as error:  # such as a broken font cache or a full disk; the numbers are saved nevertheless
        log.warning("cannot draw the plot of the simulation: %s: %s", type(error).__name__, error)
    console = wide_console(PLAIN_WIDTH)
    console.print(show.table(simulation))
    for assumption in simulation.assumptions:
        console.print(f"note: {assumption}", highlight=False)
    print(f"simulated: {run_dir / MARKDOWN}, {FILE_NAME} and {PLOT}", file=sys.stderr)
    return simulation


def _title(config: RunConfig, constants: Constants) -> str:
    """Returns the title of the plot, for example "lm, links of 10 Gbit/s and 20 µs, 1 worker per host"."""
    profile, workers = config.simulate.profile, config.simulate.workers_per_host
    model = name_of_model(config) if profile is None else Path(profile).name
    link = constants.allreduce
    speed = f"{1 / (link.secs_per_byte * GBIT_BYTES):.3g} Gbit/s and {link.latency_secs * 1e6:.3g} µs"
    return f"{model}, links of {speed}, {workers} worker{'s' * (workers > 1)} per host"


def _given(path: str) -> Measured:
    try:
        return measured.load(Path(path).expanduser())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"not a measurement ({error}); expected a file such as measured.json, which "
            "a run with comm.measure_rows=true writes to its run_dir"
        ).about(Setting.of("simulate.profile", path)) from error
