"""Stores and restores the state of Keras' own callbacks, so that a resumed run decides as an unbroken run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parallax_runner.checkpoints.checkpoint_files import readable
from parallax_runner.errors import CheckpointError
from parallax_runner.files.plain import reason_of
from parallax_runner.files.whole import writing_whole

# Maps Keras' callbacks to the attributes that change during training.
CHANGING = {
    "EarlyStopping": ("wait", "stopped_epoch", "best", "best_epoch"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
}
WEIGHTS = "best_weights"  # the attribute of EarlyStopping that contains arrays


def with_state(callbacks: Iterable[Any]) -> list[tuple[str, Any]]:
    """Returns the callbacks whose state is stored, each with the name of its Keras class."""
    import keras

    known = {kind: getattr(keras.callbacks, kind) for kind in CHANGING}
    return [(kind, each) for each in callbacks for kind, cls in known.items() if isinstance(each, cls)]


def states_of(callbacks: Iterable[Any]) -> list[dict[str, Any]]:
    """Returns the numbers in the callbacks' states, in the order of the callbacks."""
    return [
        {"kind": kind, **{name: value for name, value in vars(each).items() if name in CHANGING[kind]}}
        for kind, each in with_state(callbacks)
    ]


def restore(callbacks: Iterable[Any], states: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Restores the states that `states_of` has returned. The n-th callback of a kind gets the n-th state of this kind.
    Yields each restored callback with its state."""
    waiting = list(states)
    for kind, callback in with_state(callbacks):
        state = next((one for one in waiting if one["kind"] == kind), None)
        if state is None:
            continue
        waiting.remove(state)
        for name in CHANGING[kind]:
            if name in state:
                setattr(callback, name, state[name])
        yield callback, state


@dataclass
class BestWeights:
    """Files for the `best_weights` of `EarlyStopping`, next to the checkpoints. `start` is the beginning of their
    names."""

    folder: Path
    start: str
    _written: dict[int, str] = field(default_factory=dict)  # the names of files, by the id of a callback

    def states_of(self, callbacks: Iterable[Any]) -> list[dict[str, Any]]:
        """Returns the states of the callbacks. The state of a callback with best weights names the file that contains
        these weights. Raises CheckpointError if the file cannot be written."""
        callbacks = list(callbacks)
        states = states_of(callbacks)
        for number, (state, (_, callback)) in enumerate(zip(states, with_state(callbacks), strict=True)):
            if getattr(callback, WEIGHTS, None) is not None:
                state[WEIGHTS] = self._file_of(number, callback)
        return states

    def restore(self, callbacks: Iterable[Any], states: Iterable[Mapping[str, Any]]) -> None:
        """Restores the states that `states_of` has returned. Raises CheckpointError if a file cannot be read."""
        for callback, state in restore(callbacks, states):
            if WEIGHTS in state:
                callback.best_weights = self._read(state[WEIGHTS])
                self._written[id(callback)] = state[WEIGHTS]

    def _file_of(self, number: int, callback: Any) -> str:
        name = f"{self.start}-best-{number}-{callback.best_epoch}.npz"
        if self._written.get(id(callback)) != name:
            self._write(name, callback.best_weights)
            self._written[id(callback)] = name
            self._remove_unused()
        return name

    def _write(self, name: str, weights: list[np.ndarray]) -> None:
        try:
            with writing_whole(self.folder / name) as file:
                np.savez(file, *weights)
        except OSError as error:
            raise CheckpointError(f"{self.folder / name} could not be written: {reason_of(error)}") from error

    def _read(self, name: str) -> list[np.ndarray]:
        try:
            with np.load(self.folder / name) as arrays:
                return [arrays[f"arr_{number}"] for number in range(len(arrays.files))]
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{self.folder / name}, the best weights of EarlyStopping, cannot be read: {error}. Restore the file, "
                "or start afresh with ckpt.resume=never"
            ) from error

    def _remove_unused(self) -> None:
        """Removes the files that neither a checkpoint nor a callback needs."""
        needed = set(self._written.values())
        for sidecar in readable(self.folder).values():
            states = ((sidecar.epoch or {}).get("callbacks") or {}).get("states", ())
            needed |= {state.get(WEIGHTS) for state in states}
        for path in self.folder.glob(f"{self.start}-best-*.npz"):
            if path.name not in needed:
                path.unlink(missing_ok=True)
