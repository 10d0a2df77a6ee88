"""What a process of a run is doing. A process reports its activity to the driver as a kind and a step, and becomes text
only here, for messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Kind(Enum):
    """The kinds of activities. The value is the text for a user, in which `{step}` is the step of the activity."""

    STARTING = "starting"
    SERVING = "serving"
    STEP = "step {step}"
    BEFORE_STEP = "waiting for slower workers before step {step}"
    END_OF_STEP = "waiting for the end of step {step}"
    LAST_STEPS = "waiting for the other workers' last steps"
    SAVING = "saving step {step}"
    VALIDATION = "validation after step {step}"
    PREDICTION = "predicting"
    COMPARING = "comparing with one device"
    SCRIPT = "the script, after step {step}"
    OTHER_SCRIPTS = "waiting for the other workers' scripts"
    COMMAND = "waiting for the driver's command after step {step}"
    RESHARDING = "resharding variables after step {step}"
    READING_IDS = "reading ids"
    TIMING_STEPS = "timing steps"
    TIMING_EXCHANGES = "timing exchanges"
    TIMING_UPDATES = "timing updates"


_IN_STEP = frozenset({Kind.STEP, Kind.BEFORE_STEP, Kind.END_OF_STEP})
_WAITS = frozenset({Kind.BEFORE_STEP, Kind.END_OF_STEP, Kind.LAST_STEPS, Kind.OTHER_SCRIPTS, Kind.COMMAND})
# A process is «in step 5», but it is «saving step 5».
_PLACES = frozenset({Kind.STEP, Kind.VALIDATION, Kind.SCRIPT})


@dataclass(frozen=True)
class Activity:
    """What a process is doing. `step` is the step that the text of the kind names, or None if it names no step."""

    kind: Kind
    step: int | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if the kind needs a step and there is none, or the reverse."""
        needs_step = "{step}" in self.kind.value
        if needs_step != (type(self.step) is int):
            raise ValueError(f"{self.kind.name} with step {self.step!r}")

    def __str__(self) -> str:
        """Returns the text for a user, such as "step 41" or "saving step 41"."""
        return self.kind.value.format(step=self.step)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Activity:
        """Returns the activity that `fields` describes. Raises ValueError if it describes none."""
        try:
            return cls(Kind[fields["kind"]], fields["step"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an activity: {fields!r}") from error

    @property
    def fields(self) -> dict[str, Any]:
        """The activity as JSON values, for a message to the driver."""
        return {"kind": self.kind.name, "step": self.step}

    @property
    def is_in_step(self) -> bool:
        """Whether the process takes part in step `step`, even if it waits for other processes there."""
        return self.kind in _IN_STEP

    @property
    def waits(self) -> bool:
        """Whether the process waits for others."""
        return self.kind in _WAITS

    @property
    def is_in_script(self) -> bool:
        """Whether the process runs the user's script between two steps."""
        return self.kind is Kind.SCRIPT

    @property
    def is_place(self) -> bool:
        """Whether the text names a place, such as "step 5", and not an activity, such as "saving step 5"."""
        return self.kind in _PLACES


STARTING = Activity(Kind.STARTING)  # the activity of a process that has reported none
