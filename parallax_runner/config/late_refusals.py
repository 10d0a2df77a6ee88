"""Names the origin of a key in an error that is raised after Hydra has started the job, such as an error about the
graph. Code that raises such an error knows the value of the key, but not where it was set."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from parallax_runner.config.frozen import plain
from parallax_runner.config.schema import RunConfig
from parallax_runner.errors import ParallaxError

if TYPE_CHECKING:
    from parallax_runner.config.origins import Origins

_SETTING = re.compile(r"(?P<key>[a-z_]+(?:\.\w+)*)(?P<item>\[\d+\])?=")


def name_origins(error: BaseException, config: RunConfig) -> None:
    """Adds the origin of each setting at the start of the error's message, as in «partition.num=9 (command line): …».

    Does nothing if the message does not begin with a setting of the configuration, or if this process runs no job."""
    if isinstance(error, ParallaxError) and error.args and isinstance(error.args[0], str):
        error.args = (with_origins(error.args[0], config), *error.args[1:])


def with_origins(message: str, config: RunConfig) -> str:
    """Returns an error's message with the origin added to each setting at its start. The error may come from another
    process of the run, such as a worker."""
    ends = list(_ends(message, plain(config)))
    if not ends:
        return message
    from parallax_runner.config.running_job import origins_of_running_job

    origins = origins_of_running_job()
    if origins is None:
        return message
    for key, end in reversed(ends):
        where = _where(key, message[:end], origins)
        if where is not None:
            message = f"{message[:end]} ({where}){message[end:]}"
    return message


def _ends(message: str, content: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yields each leading setting without an origin: its key, and where its value ends."""
    position = 0
    while (found := _SETTING.match(message, position)) is not None:
        end = _end_of_value(message, found.end(), _value(content, found["key"]), is_item=bool(found["item"]))
        if end is None:
            return
        yield found["key"], end
        if not message.startswith(", ", end):
            return
        position = end + len(", ")


def _end_of_value(message: str, begin: int, value: Any, *, is_item: bool) -> int | None:
    """Returns where the value in the message ends. Returns None if the value is not the configured one, or if
    an origin already follows it."""
    words = {str(one) for one in value} if is_item and isinstance(value, list) else _forms(value)
    for word in sorted(words, key=len, reverse=True):
        end = begin + len(word)
        if word and message.startswith(word, begin) and re.match(r": |, | (?!\()", message[end:]):
            return end
    return None


def _forms(value: Any) -> set[str]:
    """Returns the forms in which messages show a value. A path is often shown as an absolute path."""
    from parallax_runner.config.explain import written

    if isinstance(value, dict):  # a group, whose choice the message names
        return {str(value["name"])} if "name" in value else set()
    paths = {os.path.expanduser(value), os.path.abspath(value), os.path.realpath(value)} if _is_text(value) else set()
    return {written(value), str(value), *paths}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


def _value(content: dict[str, Any], key: str) -> Any:
    node: Any = content
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return ""
        node = node[part]
    return node


def _where(key: str, told: str, origins: Origins) -> str | None:
    """Returns the origin of a key, or of a group's choice."""
    if key == "run_dir" and "hydra.run.dir" in origins.given():
        key = "hydra.run.dir"
    chosen = origins.chosen(key, with_defaults=True)
    if chosen is not None:
        return chosen.where if told.endswith(f"={chosen.value}") else None
    origin = origins.of(key)
    return "default" if origin is None else origin.where
