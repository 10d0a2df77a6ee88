"""`action=predict` in a worker: computes the outputs of the model for this rank's ranges of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parallax_runner.data.identified import identities
from parallax_runner.export.predictions import FOLDER, File, files_of, outputs_as_columns, own_files, write
from parallax_runner.launch.control.activity import Activity, Kind
from parallax_runner.worker.rank_run import RankRun

Columns = dict[str, np.ndarray]


@dataclass
class Prediction:
    """Writes the files of a rank. If rows of tables are on all ranks, a lookup needs all of them, so a rank whose files
    are written goes on with any batch until all ranks are done."""

    rank: RankRun
    _parts: list[Columns] = field(default_factory=list)

    def run(self) -> dict[str, Any]:
        """Writes the files, and returns this rank's fields for the summary."""
        config, loop = self.rank.config, self.rank.loop
        control, feed = loop.runner.control, loop.feed
        control.doing = Activity(Kind.PREDICTION)
        folder = Path(config.run_dir) / FOLDER
        files = files_of(folder, feed.dataset.validation_size, config.predict.format, feed.batch_size)
        waiting = _ranges(own_files(files, feed.rank, feed.size), feed.batch_size)
        following = next(waiting, None)
        while loop.all_go_on(following is not None and not control.stop_requested.is_set()):
            if following is None:
                self._outputs(feed.any_batch)
                continue
            self._predict(*following)
            following = next(waiting, None)
        loop.validates = False
        return self.rank.validate()

    def _predict(self, file: File, start: int, size: int) -> None:
        """Predicts rows [start, start + size), and writes the file if they are its last ones."""
        feed = self.rank.loop.feed
        batch = feed.dataset.validation_batch(start, size)
        is_any_size = self.rank.loop.runner.distributed.validates_any_size
        whole = batch if is_any_size or size == feed.batch_size else _filled(batch, feed.batch_size)
        of_rows = identities(feed.dataset, self.rank.config.read.part, start, size)
        self._parts.append({**of_rows, **outputs_as_columns(self._outputs(whole), size)})
        if start + size == file.stop:
            names = self._parts[0]
            write(file, {name: np.concatenate([part[name] for part in self._parts]) for name in names})
            self._parts = []

    def _outputs(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        graph = self.rank.loop.runner.distributed
        feeds = {graph.validation_features[name]: array for name, array in batch.items()}
        found: dict[str, np.ndarray] = self.rank.loop.runner.session.run(graph.outputs, feeds)
        return found


def _ranges(files: list[File], size: int) -> Iterator[tuple[File, int, int]]:
    """Yields the first row and the number of rows of each batch, with its file."""
    for file in files:
        for start in range(file.start, file.stop, size):
            yield file, start, min(size, file.stop - start)


def _filled(batch: Mapping[str, np.ndarray], size: int) -> Columns:
    """Repeats the last row of a partial batch of dense features, for a model that only takes batches of one size."""
    return {name: np.take(array, np.arange(size), axis=0, mode="clip") for name, array in batch.items()}
