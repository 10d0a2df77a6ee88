"""The experiments: which files, which settings, and which metric."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.results import ratings

WORKERS = 2
MODES = ("local", "mpi", "sharded", "hybrid", "ps")


@dataclass(frozen=True)
class Experiment:
    """A training that each mode runs with the same global batch.

    `prepare` gets the given path and a folder for files, and returns facts for the record. `settings` may contain
    `{data}`, the given path, and `{files}`, the folder. `recorded` is the name of the metric in MLflow, `metric` is the
    name of what `converted` makes of it.
    """

    name: str
    settings: tuple[str, ...]
    global_batch: int
    steps: int
    validate_steps: int
    recorded: str
    metric: str
    converted: Callable[[float], float] = field(default=float)
    prepare: Callable[[Path, Path], dict[str, float]] = field(default=lambda _data, _files: {})

    def overrides(self, mode: str, data: Path, files: Path) -> list[str]:
        """Returns the command line of a mode. One device gets the batches that the workers share in other modes."""
        workers = 1 if mode == "local" else WORKERS
        return [
            *(setting.replace("{data}", str(data)).replace("{files}", str(files)) for setting in self.settings),
            f"comm={mode}",
            f"cluster.workers={workers}",
            f"data.batch_size={self.global_batch // workers}",
            f"train.steps={self.steps}",
            f"train.validate_steps={self.validate_steps}",
            f"train.log_every={self.validate_steps}",
        ]


RATINGS = Experiment(
    name="ratings",
    settings=(
        *("model=tabular", "model.task=regression", "model.learning_rate=0.05"),
        *("data.train={files}/train.csv", "data.validation={files}/validation.csv", f"data.columns={ratings.COLUMNS}"),
    ),
    global_batch=512,
    steps=800,
    validate_steps=50,
    recorded="validation/loss",
    metric="RMSE",
    converted=math.sqrt,
    prepare=ratings.write_files,
)
LANGUAGE = Experiment(
    name="language",
    settings=(
        *("model=lm", "data=text", "data.path={data}/valid.txt", "data.validation_path={data}/test.txt"),
        *("data.vocab_size=10000", "data.validation_examples=2048"),
    ),
    global_batch=64,
    steps=400,
    validate_steps=50,
    recorded="validation/perplexity",
    metric="perplexity",
)
EXPERIMENTS = {one.name: one for one in (RATINGS, LANGUAGE)}
