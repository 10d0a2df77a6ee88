"""`action=sync`: sends the unsent entries in the journals of a run, or of a sweep and its jobs. Builds no graph."""

from __future__ import annotations

import os
from pathlib import Path

from parallax_runner.config.tracking_uri import TRACKING_URI
from parallax_runner.errors import ConfigError, TrackingError
from parallax_runner.files.credentials import masked_uri
from parallax_runner.track.mlflow import journal as journals
from parallax_runner.track.mlflow import open_runs, runs
from parallax_runner.track.mlflow.delivery import Busy, unsent
from parallax_runner.track.mlflow.destination import addressed, chosen_uri, is_foreign
from parallax_runner.track.mlflow.run_id import read_run_id
from parallax_runner.track.mlflow.settle import send_rest, settle, settle_others
from parallax_runner.track.mlflow.store import OutOfReach, Refused


def sync(path: Path, uri: str | None = None) -> None:
    """Settles and sends every journal under `path`, and then sends the entries that this user's other runs have left
    unsent.

    The journals are sent to the store `uri`. If `uri` is None, each journal is sent to the store that it names, or to
    the environment's store if the journal belongs to another user. Raises ConfigError if there is no journal, and
    TrackingError if something could not be sent.
    """
    run_dirs = find_run_dirs(path)
    if not run_dirs:
        raise ConfigError(
            f"run_dir={path}: there is no journal.jsonl at or below this path. Expected the folder of a recorded run "
            "or of a sweep"
        )
    failures = [failure for run_dir in run_dirs if (failure := _sync_one(run_dir, uri)) is not None]
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        raise TrackingError(f"{failures[0]}{more}")
    settle_others(path, runs.open_run)


def find_run_dirs(path: Path) -> list[Path]:
    """Returns the folders with a journal at or below `path`. A sweep's folder comes before the folders of its jobs."""
    return sorted(Path(folder).resolve() for folder, _, names in os.walk(path) if "journal.jsonl" in names)


def _sync_one(run_dir: Path, uri: str | None) -> str | None:
    """Sends one run. Returns an error message, or None if everything was sent."""
    waiting = 0
    try:
        waiting = sum(unsent(path) for path in journals.journals(run_dir))
        begun = journals.begun(run_dir)
        if not begun:
            print(f"{run_dir}: nothing to send, because no journal has a valid header")
            return None
        for path in filter(is_foreign, begun):
            uri = uri or (chosen_uri(None) if os.environ.get(TRACKING_URI) else None)
            addressed(path, uri)
        settle_dead(run_dir)
        waiting = sum(unsent(path, None if uri is None else addressed(path, uri)) for path in begun)
        if send_rest(run_dir, runs.open_run, uri=uri):
            open_runs.forget(run_dir)
    except BlockingIOError:
        return f"{run_dir}: the run is still active, and its driver is sending the journal"
    except Busy as error:
        return f"{error}. Try again when that process has finished"
    except OutOfReach as error:
        return f"{run_dir}: {waiting} entries were not sent, because MLflow is unreachable: {error}. Try again later"
    except Refused as error:
        return f"{run_dir}: {waiting} entries cannot be sent: {error}"
    except (OSError, LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        return f"{run_dir}: its journal cannot be sent and may be damaged: {type(error).__name__}: {error}"
    told = f"{waiting} entries sent" if waiting else "nothing to send"
    store = masked_uri(uri or journals.read_header(begun[-1]).uri)
    print(f"{run_dir}: {told}; MLflow run {read_run_id(run_dir)} in {store}")
    return None


def settle_dead(run_dir: Path) -> None:
    """Ends the run's journals. Does nothing if the run's driver ran on another host, because only that host can
    determine whether the driver is alive.

    Raises BlockingIOError if the driver is alive.
    """
    start = journals.standing(journals.begun(run_dir)[-1]).start
    if start is None or start["host"] == os.uname().nodename:
        settle(run_dir)
