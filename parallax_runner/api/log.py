"""`parallax.log`: a logger for scripts. PARALLAX_LOG_LEVEL (a name such as DEBUG, or a number) sets the logger's
level."""

import logging
import os
import sys
from typing import Any, TextIO

LEVEL = "PARALLAX_LOG_LEVEL"


class _CurrentStderr(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, because workers replace `sys.stderr` after the logger has been created."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, _: Any) -> None: ...


def _level(environ: str | None) -> int:
    """Returns the level that the value of the environment variable specifies, or INFO if the value is missing or
    unknown."""
    if environ is None:
        return logging.INFO
    if environ.strip().isdigit():
        return int(environ)
    return logging.getLevelNamesMapping().get(environ.strip().upper(), logging.INFO)


def _make() -> logging.Logger:
    logger = logging.getLogger("parallax")
    if not logger.handlers:
        handler = _CurrentStderr()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    logger.setLevel(_level(os.environ.get(LEVEL)))
    return logger


log = _make()
