"""The address of a tracking store in the configuration: no password may stand in it."""

import re

from parallax_runner.files.credentials import WEB

TRACKING_URI = "MLFLOW_TRACKING_URI"
# SQLAlchemy takes a port for the begin of a password where an @ follows, even one in the options.
_PORT_OR_PASSWORD = re.compile(r"\A(?!https?:)[A-Za-z][\w+.-]*://[^:/]*:\d{1,5}/.*@", re.IGNORECASE | re.DOTALL)


def password_remedy(uri: str) -> str:
    """Why an address with a password is refused, and where the password belongs."""
    reason = "a password or token in it would be written to files and to MLflow"
    if WEB.match(uri):
        return (
            f"{reason}: leave it out, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "MLFLOW_TRACKING_TOKEN, in the environment"
        )
    if _PORT_OR_PASSWORD.match(uri):
        reason = (
            "SQLAlchemy reads what stands between the first colon and the last @ behind :// as a password; if that "
            f"begins with a port, write %40 for each @ in it; {reason}"
        )
    return f"{reason}: give tracking.uri=null, and set {TRACKING_URI} in the environment to the whole address"
