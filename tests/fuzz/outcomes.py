"""Decides what became of each model, from the files of the ranks and of the reference."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.fuzz import kinds
from tests.fuzz.compare import differences, largest, without_noise
from tests.fuzz.random_model import RandomModel

EQUAL, NOISE, NAMED, REFUSED = "equal", "equal but for noise", "named", "refused"
DIFFERENT, RANKS_DIFFER, CRASHED, HUNG = "different", "ranks differ", "crashed", "hung"
UNNAMED, MISNAMED = "no note names the loss", "a note names a loss that is a mean"
FINDS = (DIFFERENT, RANKS_DIFFER, CRASHED, HUNG, UNNAMED, MISNAMED)
_FAILED_IN_USER_CODE = "the model's function failed"
_NAMES_A_LOSS = re.compile(r"\bloss(es)?\b")


@dataclass(frozen=True)
class Outcome:
    """What became of a model: equal to the reference, refused, or a find. A loss that is not a mean must be named."""

    model: RandomModel
    status: str
    text: str = ""

    @property
    def is_find(self) -> bool:
        return self.status in FINDS


@dataclass(frozen=True)
class Results:
    """The folders of the ranks' files, of the reference's files, and of the reference's with other orders of the
    examples."""

    run: Path
    plain: Path
    others: tuple[Path, ...] = ()
    ended: dict[int, str] | None = None

    def outcome(self, model: RandomModel) -> Outcome:
        """Returns what became of a model. Without `others`, noise counts as a difference."""
        ended = (self.ended or {}).get(model.seed)
        captured = self._captured(model)
        if ended is not None:
            status = HUNG if ended.startswith("hung") else CRASHED
            return Outcome(model, status, f"{ended}\n{self._failure(model)}")
        refused = [each["text"] for each in captured if each["status"] == "refused"]
        if refused and _FAILED_IN_USER_CODE in refused[0]:  # untouched TensorFlow runs the same function
            return Outcome(model, CRASHED, refused[0])
        if len(refused) == model.processes:
            return Outcome(model, REFUSED, refused[0])
        failed = [each["text"] for each in captured if each["status"] != "ready"]
        if failed:
            return Outcome(model, CRASHED, failed[0])
        return self._compared(model, "\n".join(captured[0].get("notes", ())))

    def _captured(self, model: RandomModel) -> list[dict]:
        paths = [self.run / f"{model.seed}_captured_{rank}.json" for rank in range(model.processes)]
        return [json.loads(path.read_text()) for path in paths if path.exists()]

    def _failure(self, model: RandomModel) -> str:
        texts = [json.loads(path.read_text())["text"] for path in self.run.glob(f"{model.seed}_failed_*.json")]
        return "\n".join(texts)

    def _compared(self, model: RandomModel, notes: str) -> Outcome:
        is_named = _NAMES_A_LOSS.search(notes) is not None
        if is_named and not kinds.must_be_named(model.labels):
            return Outcome(model, MISNAMED, f"the loss is a mean, but a note says: {notes}")
        if kinds.must_be_named(model.labels) and not is_named:
            return Outcome(model, UNNAMED, f"notes: {notes!r}\n{self._difference(model) or ''}")
        if set(model.labels) & set(kinds.NEITHER):
            return Outcome(model, NAMED, notes)
        difference = self._difference(model)
        if difference is not None:
            return Outcome(model, DIFFERENT, difference)
        apart = self._rank_that_differs(model)
        if apart is not None:
            return Outcome(model, RANKS_DIFFER, apart)
        return Outcome(model, NAMED if kinds.must_be_named(model.labels) else EQUAL, notes)

    def _difference(self, model: RandomModel) -> str | None:
        """Returns the largest difference between the ranks and the reference: in initial values, losses and final
        values."""
        failure = self.plain / f"{model.seed}_failed.txt"
        if failure.exists():
            return f"untouched TensorFlow fails: {failure.read_text()}"
        run, plain = (self._arrays(folder, model, "initial", ranks) for folder, ranks in self._both())
        if not plain.keys() & run.keys():
            return f"no variable has the same name: {sorted(run)}, expected {sorted(plain)}"
        begun = differences(run, plain)
        if begun:
            return f"before the first step, {largest(begun, run, plain).text}"
        run, plain = (self._arrays(folder, model, "final", ranks) for folder, ranks in self._both())
        missing = sorted(plain.keys() - run.keys())
        if missing:
            return f"variables are missing: {missing}; there are {sorted(run.keys() - plain.keys())}"
        found = self._unexplained(model, differences(run, plain), plain, "final")
        if found:
            return largest(found, run, plain).text
        if not kinds.must_be_named(model.labels):
            losses, expected = {"losses": self._losses(model)}, self._arrays(self.plain, model, "losses", None)
            found = self._unexplained(model, differences(losses, expected), expected, "losses")
            if found:
                return f"the losses differ: {largest(found, losses, expected).text}"
        return None

    def _both(self) -> tuple[tuple[Path, int | None], ...]:
        return (self.run, 0), (self.plain, None)

    def _unexplained(
        self, model: RandomModel, found: dict[str, np.ndarray], plain: dict[str, np.ndarray], what: str
    ) -> dict[str, np.ndarray]:
        if not found or not self.others:
            return found
        others = [self._arrays(folder, model, what, None) for folder in self.others]
        return without_noise(found, plain, others)

    def _losses(self, model: RandomModel) -> np.ndarray:
        """Returns the mean of the ranks' losses in each step."""
        every = [self._arrays(self.run, model, "losses", rank)["losses"] for rank in range(model.processes)]
        return np.nanmean(every, axis=0)

    def _rank_that_differs(self, model: RandomModel) -> str | None:
        chief = self._arrays(self.run, model, "final", 0)
        for rank in range(1, model.segments[-1].ranks):
            own = self._arrays(self.run, model, "final", rank)
            found = differences(own, {name: chief[name] for name in own})
            if found:
                return f"rank {rank} and rank 0: {largest(found, own, chief).text}"
        return None

    def _arrays(self, folder: Path, model: RandomModel, what: str, rank: int | None) -> dict[str, np.ndarray]:
        ending = "" if rank is None else f"_{rank}"
        with np.load(folder / f"{model.seed}_{what}{ending}.npz") as file:
            return dict(file.items())
