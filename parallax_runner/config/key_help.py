"""The text of `--help train`: the keys of a group with their values, types, units and meanings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from hydra.core.object_type import ObjectType
from omegaconf import DictConfig

from parallax_runner.config.comments import head_comment, key_comments
from parallax_runner.config.compose import CONFIG_NAME, Composer, resolve
from parallax_runner.config.key_meanings import (
    SCHEMA_GROUPS,
    KeyMeaning,
    keys_of_config_file,
    keys_of_group,
    node_of,
    value_of,
)
from parallax_runner.config.schema import FREE_GROUPS
from parallax_runner.config.suggestions import nearest
from parallax_runner.errors import ConfigError, Setting

ALL = "all"
WIDTH = 100  # in characters


def key_help(composer: Composer, topics: Sequence[str], overrides: Sequence[str], *, resolved: bool) -> str:
    """Returns the help for the keys that the topics name, with their values under these overrides. A topic is a group,
    a key, a key prefix, or `all`. Raises ConfigError for any other topic."""
    job = composer.job(overrides)
    choices = dict(job.config.hydra.runtime.choices)
    config = resolve(job) if resolved else job.config
    groups = [group for group in choices if not _is_of_hydra(group)]
    keys: dict[str, list[str]] = {}
    for group in ["", *groups]:
        keys |= dict(_keys(composer, group, choices, config))
    found: list[str] = []
    for topic in topics:
        topic_groups = _groups_named(topic, groups)
        topic_keys = _keys_named(topic, keys)
        if not topic_groups and not topic_keys:
            raise _no_topic(topic, [*groups, *keys])
        for group in topic_groups:
            found += [*_choices(composer, group, choices[group]), ""]
        for key in topic_keys:
            found += keys[key]
        found.append("")
    return "\n".join(found).rstrip()


def _is_of_hydra(group: str) -> bool:
    return group == "hydra" or group.startswith("hydra/")


def _groups_named(topic: str, groups: Sequence[str]) -> Sequence[str]:
    if topic == ALL:
        return groups
    return [topic] if topic in groups else []


def _keys_named(topic: str, keys: Iterable[str]) -> list[str]:
    if topic == ALL:
        return list(keys)
    return [key for key in keys if key == topic or key.startswith(f"{topic}.")]


def _no_topic(topic: str, known: Sequence[str]) -> ConfigError:
    hint = nearest(topic, known)
    suggestion = None if hint is None else f"Did you mean --help {hint}?"
    return ConfigError("there is no such group or key.").about(Setting.typed(f"--help {topic}"), remedy=suggestion)


def _choices(composer: Composer, group: str, chosen: str | None) -> Iterator[str]:
    for choice in composer.options(group, ObjectType.CONFIG):
        yield f"{group}={choice}" + (" (chosen)" if choice == chosen else "")
        yield from _indented(head_comment(composer.text_of(f"{group}/{choice}")))


def _keys(
    composer: Composer, group: str, choices: dict[str, str | None], config: DictConfig
) -> Iterator[tuple[str, list[str]]]:
    """Yields each key of a group, or of the top level, with its help lines."""
    prefix = f"{group}." if group else ""
    for key in _meanings(composer, group, choices.get(group), config):
        name = f"{prefix}{key.name}"
        kind = f"{key.kind}; in {key.unit}" if key.unit and key.unit not in key.kind else key.kind
        about = ". ".join(part for part in (kind, key.meaning) if part)
        yield name, [f"{name}={value_of(node_of(config, name))}", *_indented(about)]


def _meanings(composer: Composer, group: str, chosen: str | None, config: DictConfig) -> list[KeyMeaning]:
    if not group:
        return keys_of_config_file(composer.text_of(CONFIG_NAME))
    if group in SCHEMA_GROUPS:
        names = sorted(composer.options(group, ObjectType.CONFIG), key=lambda name: name != chosen)
        return keys_of_group(group, [composer.text_of(f"{group}/{name}") for name in names])
    if group not in FREE_GROUPS:
        return []
    comments = key_comments(composer.text_of(f"{group}/{chosen}"))
    names = [str(name) for name in config[group]]
    return [KeyMeaning(name, "", "", comments.get(name, "")) for name in names]


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    ")
