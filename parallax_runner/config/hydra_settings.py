"""Explains a failure of Hydra outside of a job by the settings of Hydra on the command line."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from parallax_runner.config.explain import shown
from parallax_runner.errors import ConfigError, ParallaxError, Setting, StorageError, is_of_storage

FULL_ERROR = "HYDRA_FULL_ERROR"  # makes Hydra raise an error instead of printing it


@contextmanager
def explained(overrides: Sequence[str], job_file: str) -> Iterator[None]:
    """Turns an error that Hydra raises outside of a job into a ConfigError about the Hydra settings in `overrides`.

    An error whose traceback has a frame in `job_file`, the file that runs jobs, is not changed. Raises StorageError if
    the disk is the cause."""
    before = os.environ.get(FULL_ERROR)
    os.environ[FULL_ERROR] = "1"
    try:
        yield
    except ParallaxError:
        raise
    except Exception as error:
        is_of_job = any(frame.f_code.co_filename == job_file for frame, _ in traceback.walk_tb(error.__traceback__))
        if is_of_job:
            raise
        given = [word for word in overrides if word.lstrip("+~").startswith("hydra")]
        if given:
            raise _refusal(given, error) from error
        if is_of_storage(error):
            raise StorageError(f"Hydra cannot create the run directory: {error}") from error
        raise
    finally:
        if before is None:
            os.environ.pop(FULL_ERROR, None)
        else:
            os.environ[FULL_ERROR] = before


def _refusal(given: Sequence[str], error: Exception) -> ConfigError:
    """Returns the error for the Hydra settings `given`, with which Hydra fails."""
    told = " ".join(str(error).split()).rstrip(".")
    fails = f"Hydra fails with {'this setting' if len(given) == 1 else 'these settings'}"
    about = Setting.typed(shown(" ".join(given)))
    return ConfigError(f"{fails}: {type(error).__name__}: {shown(told)}").about(about)
