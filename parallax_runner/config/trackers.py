"""Finds the tracker class that `tracking.tracker` names, and checks its settings."""

from typing import Any

from parallax_runner.config.explain import refusal
from parallax_runner.config.named_class import find_class, known_names
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.suggestions import nearest
from parallax_runner.config.tracking_uri import corrected_sqlite, is_in_memory, password_remedy
from parallax_runner.files.credentials import has_credentials, masked_uri

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


def check_tracking(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for an unknown tracker, for an option that the tracker does not have, or for a password in the
    URI of its store."""
    if config.tracking.enabled:
        _check_tracker(config.tracking.tracker, origins)
        if config.tracking.tracker in BUILT_IN and config.tracking.experiment is None:
            raise refusal("tracking.experiment", origins, "expected a string", value="null")
    uri = config.tracking.uri
    if uri is not None and has_credentials(uri):
        raise refusal("tracking.uri", origins, password_remedy(uri), value=masked_uri(uri))
    if config.tracking.tracker in BUILT_IN and uri is not None and is_in_memory(uri):
        reason = "this database is in memory, so nothing would be kept; give a path after three slashes"
        raise refusal("tracking.uri", origins, reason, value=uri, hint="tracking.uri=sqlite:///mlflow.db")
    if config.tracking.tracker in BUILT_IN and uri is not None and (meant := corrected_sqlite(uri)) is not None:
        reason = "a relative path follows three slashes, and an absolute path follows four"
        raise refusal("tracking.uri", origins, reason, value=uri, hint=f"tracking.uri={meant}")


def _check_tracker(name: str, origins: Origins) -> None:
    try:
        tracker_class(name)
    except LookupError as error:
        near = None if "." in name else nearest(name, known_names(BUILT_IN, ENTRY_POINTS))
        hint = None if near is None else f"{KEY}={near}"
        raise refusal(KEY, origins, str(error), value=name, hint=hint) from error
