"""`action=sync`: sends the unsent entries in the journals of a run, or of a sweep and its jobs. Builds no graph."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from parallax_runner.errors import ConfigError, Setting, TrackingError
from parallax_runner.files.credentials import masked_uri
from parallax_runner.track.mlflow import journal as journals
from parallax_runner.track.mlflow import runs
from parallax_runner.track.mlflow.delivery import Busy, Delivery, unsent
from parallax_runner.track.mlflow.destination import addressed, check_owner
from parallax_runner.track.mlflow.killed import end_killed
from parallax_runner.track.mlflow.run_id import read_run_id
from parallax_runner.track.mlflow.store import OutOfReach, Refused


def sync(path: Path, uri: str | None = None) -> None:
    """Sends every journal under `path`. If the driver of a run was killed, first records the end of the run.

    The journals are sent to the store `uri`. If `uri` is None, each journal is sent to the store that it names. Raises
    ConfigError if there is no journal, and TrackingError if something could not be sent.
    """
    run_dirs = find_run_dirs(path)
    if not run_dirs:
        raise ConfigError(
            "there is no journal.jsonl at or below this path. Expected the folder of a recorded run or of a sweep"
        ).about(Setting.of("run_dir", path))
    failures = [failure for run_dir in run_dirs if (failure := _sync_one(run_dir, uri)) is not None]
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        raise TrackingError(f"{failures[0]}{more}")


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
        for path in begun:
            check_owner(path)
        _end_if_killed(run_dir)
        waiting = _unsent_to(uri, begun)
        for path in begun:
            _send(path, uri)
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
    _tell_sent(run_dir, waiting, uri or journals.read_header(begun[-1]).uri)
    return None


def _unsent_to(uri: str | None, begun: Sequence[Path]) -> int:
    """Returns the number of entries that have not been sent to `uri`, or to the journals' own store."""
    if uri is None:
        return sum(unsent(path) for path in begun)
    return sum(unsent(path, addressed(path, uri)) for path in begun)


def _tell_sent(run_dir: Path, sent: int, uri: str) -> None:
    told = f"{sent} entries sent" if sent else "nothing to send"
    print(f"{run_dir}: {told}; MLflow run {read_run_id(run_dir)} in {masked_uri(uri)}")


def _send(path: Path, uri: str | None) -> None:
    """Sends the unsent entries of one journal. Raises OutOfReach, Refused and Busy."""
    if uri is None and not unsent(path):  # without the password of the store
        return
    header = addressed(path, uri)
    if unsent(path, header):
        with Delivery(path, runs.open_run, header) as delivery:
            delivery.send_all()


def _end_if_killed(run_dir: Path) -> None:
    """Ends the run's journals. Does nothing if the run's driver ran on another host, because only that host can
    determine whether the driver is alive.

    Raises BlockingIOError if the driver is alive.
    """
    start = journals.standing(journals.begun(run_dir)[-1]).start
    if start is None or start["host"] == os.uname().nodename:
        end_killed(run_dir)
