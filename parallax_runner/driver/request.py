"""What the driver was asked to do, and what it has besides the configuration to do it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.epochs import MakeEpochs
from parallax_runner.driver.run_state import RunState
from parallax_runner.graph.build import Source
from parallax_runner.launch.interrupts import Interrupts


@dataclass(frozen=True)
class Request:
    """One job of the driver.

    `source` provides the graph and the data, from the configuration or from a script. `run_dir` is the job's folder,
    which is locked. `state` collects the results, and `interrupts` the signals. `make_epochs` makes the object that is
    called between epochs, or is None. `before` is the summary of an earlier run in the folder.
    """

    config: RunConfig
    source: Source
    run_dir: Path
    state: RunState
    interrupts: Interrupts
    make_epochs: MakeEpochs | None
    before: Mapping[str, Any]
