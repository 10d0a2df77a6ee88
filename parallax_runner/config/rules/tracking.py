"""The tracker that `tracking.tracker` names, and its settings."""

from parallax_runner.config.explain import refusal
from parallax_runner.config.named_class import known_names
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.suggestions import nearest
from parallax_runner.config.trackers import BUILT_IN, ENTRY_POINTS, KEY, declared_by, tracker_class
from parallax_runner.config.tracking_uri import corrected_sqlite, is_in_memory, password_remedy
from parallax_runner.files.credentials import has_credentials, masked_uri


def check_tracker(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for an unknown tracker, or for a tracker without its settings."""
    name = config.tracking.tracker
    if not config.tracking.enabled:
        return
    try:
        found = tracker_class(name)
    except LookupError as error:
        near = None if "." in name else nearest(name, known_names(BUILT_IN, ENTRY_POINTS))
        hint = None if near is None else f"{KEY}={near}"
        raise refusal(KEY, origins, str(error), value=name, hint=hint) from error
    if found.needs_experiment and config.tracking.experiment is None:
        raise refusal("tracking.experiment", origins, "expected a string", value="null")


def check_tracking_uri(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for a password in the URI of the tracker's store, and for a URI of SQLite without a file."""
    key, uri = "tracking.uri", config.tracking.uri
    if uri is None:
        return
    if has_credentials(uri):
        raise refusal(key, origins, password_remedy(uri), value=masked_uri(uri))
    if not declared_by(config.tracking.tracker).stores_in_database:
        return
    if is_in_memory(uri):
        reason = "this database is in memory, so nothing would be kept; give a path after three slashes"
        raise refusal(key, origins, reason, value=uri, hint=f"{key}=sqlite:///mlflow.db")
    if (meant := corrected_sqlite(uri)) is not None:
        reason = "a relative path follows three slashes, and an absolute path follows four"
        raise refusal(key, origins, reason, value=uri, hint=f"{key}={meant}")
