"""What an experiment is: which files, which settings, and which metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

WORKERS = 2
# The first mode is the one that the others are compared with.
MODES = ("mpi", "sharded", "hybrid", "ps", "local")

# From a finished run's folder, the folder for files, and what MLflow has recorded under `Experiment.recorded`, by step:
# the values of the metric, by step.
Values = Callable[[Path, Path, Mapping[int, float]], dict[int, float]]


def as_recorded(_run_dir: Path, _files: Path, recorded: Mapping[int, float]) -> dict[int, float]:
    """Returns the recorded values."""
    return dict(recorded)


@dataclass(frozen=True)
class Experiment:
    """A training that each mode runs with the same global batch.

    `prepare` gets the given path and a folder for files, and returns facts for the record, one of which is the metric
    of a trivial baseline. `settings` may contain `{data}`, the given path, and `{files}`, the folder. `recorded` is the
    name of a value in MLflow, which `values` converts to `metric`.
    """

    name: str
    data: str
    settings: tuple[str, ...]
    global_batch: int
    steps: int
    measure_steps: int
    recorded: str
    metric: str
    prepare: Callable[[Path, Path], dict[str, float]]
    values: Values = as_recorded

    def overrides(self, mode: str, data: Path, files: Path) -> list[str]:
        """Returns the command line of a mode. One device gets the batches that the workers share in other modes."""
        workers = 1 if mode == "local" else WORKERS
        return [
            *(setting.replace("{data}", str(data)).replace("{files}", str(files)) for setting in self.settings),
            f"comm={mode}",
            f"cluster.workers={workers}",
            f"data.batch_size={self.global_batch // workers}",
            f"train.steps={self.steps}",
            f"train.validate_steps={self.measure_steps}",
            f"train.log_every={self.measure_steps}",
        ]
