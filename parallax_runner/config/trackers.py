"""Finds the tracker class that `tracking.tracker` names."""

from typing import Any

from parallax_runner.config.named_class import find_class

KEY = "tracking.tracker"
BUILT_IN = {"mlflow": "parallax_runner.track.mlflow.tracker.MlflowTracker"}
ENTRY_POINTS = "parallax_runner.trackers"
BASE = "parallax_runner.track.tracker.Tracker"
# The key for the run's id (the id in the tracker's store) in summary.json, in checkpoint sidecars and in results.json.
# The key contains the name of the first tracker, because users' programs read these files.
RUN_ID_KEY = "mlflow_run_id"


def tracker_class(name: str) -> Any:
    """Returns the class with this name. Raises LookupError, with the reason as a sentence, if there is no such
    class."""
    return find_class(name, built_in=BUILT_IN, group=ENTRY_POINTS, base=BASE)


def declared_by(name: str) -> Any:
    """Returns the class whose attributes tell what the rules ask about a tracker. A name without a class declares
    nothing, because a rule of its own refuses it."""
    try:
        return tracker_class(name)
    except LookupError:
        return tracker_class(BASE)
