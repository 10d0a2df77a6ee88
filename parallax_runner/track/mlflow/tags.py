"""The tags of an MLflow run: which of them a journal may set, and which the sender sets itself.

A journal may come from an archive of another person. Its tags must not decide to whom a run belongs, of which sweep it
is a part, or which journal writes to it.
"""

from __future__ import annotations

from collections.abc import Mapping

from parallax_runner.track.origin import user_name

MAX_TAG_CHARS = 8000
JOURNAL_TAG = "parallax.journal"
CHANGED_TAG = "parallax.changed_params"
RESUMED_TAG = "parallax.resumed_from"
PARENT_TAG = "mlflow.parentRunId"
USER_TAG = "mlflow.user"
# The tag for the description of a run. The description contains the command, because the run's page shows only the part
# of the source name after the last slash.
DESCRIPTION = "mlflow.note.content"
# MLflow shows these tags in separate columns.
TAGS_OF_ORIGIN = {"command": "mlflow.source.name", "git.commit": "mlflow.source.git.commit"}
# MLflow gives the tags with this prefix a meaning. A journal may set only those that describe a run.
OF_MLFLOW = "mlflow."
DESCRIBING = frozenset({DESCRIPTION, *TAGS_OF_ORIGIN.values()})
OF_SENDER = frozenset({JOURNAL_TAG, CHANGED_TAG})


def is_reserved(key: str) -> bool:
    """Returns whether a journal must not set a tag. MLflow treats keys that differ in case as different keys, but some
    databases do not."""
    key = key.strip().lower()
    return key in OF_SENDER or (key.startswith(OF_MLFLOW) and key not in {one.lower() for one in DESCRIBING})


def of_journal(tags: Mapping[str, str]) -> dict[str, str]:
    """Returns the tags of a journal without reserved keys, and with values that MLflow accepts."""
    return {key: value[:MAX_TAG_CHARS] for key, value in tags.items() if not is_reserved(key)}


def of_new_run(tags: Mapping[str, str], journal_id: str, parent_run_id: str | None) -> dict[str, str]:
    """Returns the tags of a new run. `tags` are the tags of its journal."""
    parent = {} if parent_run_id is None else {PARENT_TAG: parent_run_id}
    return {**of_journal(tags), USER_TAG: user_name(), JOURNAL_TAG: journal_id, **parent}
