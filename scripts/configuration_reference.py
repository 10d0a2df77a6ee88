"""Writes docs/configuration.md: every key of the configuration, from the schema and the files in conf/.

A meaning is a comment, and stands where the value stands: in the choice's file in conf/, or in
parallax_runner/config/schema.py for a field whose default is there.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from parallax_runner.config.compose import register_schema
from parallax_runner.config.explain import describe
from parallax_runner.config.location import conf_dir
from parallax_runner.config.schema import FREE_GROUPS, RunConfig
from parallax_runner.config.structured import STRUCTURED, group_in
from scripts.comments import class_comments, head_comment, key_comments

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
INTRODUCTION = """# Configuration reference

This page is generated: `scripts/docs reference` writes it from `conf/` and `parallax_runner/config/schema.py`.

Every key can be set on the command line, in
[Hydra's override syntax](https://hydra.cc/docs/1.3/advanced/override_grammar/basic/): `group=choice` takes a file of
`conf/`, and `group.key=value` sets one key. A default is that of the group's default choice; the last column has the
choices that have another value. `???` stands for a value that has to be given, and `${key}` for that of another key.
"""
SCHEMA_GROUPS = {
    entry.name: entry.type for entry in dataclasses.fields(RunConfig) if dataclasses.is_dataclass(entry.type)
}
TABLE_OF_KEYS = "| key | type | default | unit | meaning | other choices |\n|---|---|---|---|---|---|"


def page() -> str:
    """The whole text of docs/configuration.md."""
    parts = [INTRODUCTION, _overview(), "## Top level\n", _top_level()]
    for group in _groups():
        if group in SCHEMA_GROUPS:
            parts += [f"## `{group}`\n", _choices(group), _typed_keys(group)]
    for group in FREE_GROUPS:
        parts += [f"## `{group}`\n", *(_free_choice(group, choice) for choice in _group_choices(group))]
    parts += [
        "## `experiment`\n",
        "A named set of overrides; its file in `conf/experiment/` shows them.\n",
        _choices("experiment"),
    ]
    return "\n".join(parts)


def _groups() -> dict[str, str | None]:
    """The groups in the order of conf/config.yaml, each with its default choice."""
    defaults = _yaml("config")["defaults"]
    return {
        group: choice
        for entry in defaults
        if isinstance(entry, dict)
        for group, choice in entry.items()
        if not group.startswith("override ")
    }


def _group_choices(group: str) -> list[str]:
    """All choices of a group, the default one first."""
    names = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
    return sorted(names, key=lambda name: name != _groups()[group])


def _overview() -> str:
    rows = ["<!-- groups -->\n", "| group | choices, the default first |", "|---|---|"]
    for group, default in _groups().items():
        none = "none " if default is None else ""
        rows.append(f"| `{group}` | {none}{' '.join(f'`{choice}`' for choice in _group_choices(group))} |")
    return "\n".join(rows) + "\n"


def _choices(group: str) -> str:
    rows = ["| choice | what it is |", "|---|---|"]
    for choice in _group_choices(group):
        rows.append(f"| `{group}={choice}` | {_prose(head_comment(_text(f'{group}/{choice}')))} |")
    return "\n".join(rows) + "\n"


def _top_level() -> str:
    config, comments = _composed(), key_comments(_text("config"))
    rows = [TABLE_OF_KEYS]
    for entry, frozen in _entries(STRUCTURED, RunConfig):
        if entry.name in ("sweep", "simulate"):
            for inner, inner_frozen in _entries(entry.type, SCHEMA_GROUPS[entry.name]):
                key = f"{entry.name}.{inner.name}"
                rows.append(_row(key, inner, inner_frozen, config[entry.name]._get_node(inner.name), comments[key], ""))
        elif entry.name not in _groups():
            rows.append(_row(entry.name, entry, frozen, config._get_node(entry.name), comments[entry.name], ""))
    return "\n".join(rows) + "\n"


def _typed_keys(group: str) -> str:
    choices = _group_choices(group)
    values = {choice: _composed(f"{group}={choice}")[group] for choice in choices}
    comments = _comments_of_group(group, choices)
    rows = [TABLE_OF_KEYS]
    for key, entry, frozen in _leaves(STRUCTURED.__dataclass_fields__[group].type, SCHEMA_GROUPS[group]):
        written = {choice: _written(_node(values[choice], key)) for choice in choices}
        default = written[choices[0]]
        others = ", ".join(f"`{choice}`: `{text}`" for choice, text in written.items() if text != default)
        name = f"{group}.{key}"
        rows.append(_row(name, entry, frozen, _node(values[choices[0]], key), comments.get(key, ""), others))
    return "\n".join(rows) + "\n"


def _comments_of_group(group: str, choices: list[str]) -> Mapping[str, str]:
    """What stands in the file of the default choice, else in the schema, else in the file of the first choice that says
    something."""
    default, *others = [key_comments(_text(f"{group}/{choice}")) for choice in choices]
    return ChainMap(default, class_comments(SCHEMA_GROUPS[group]), *others)


def _free_choice(group: str, choice: str) -> str:
    text = _text(f"{group}/{choice}")
    brought = [
        f"`{key.removeprefix('override /').partition('@')[0]}={value}`"
        for entry in _yaml(f"{group}/{choice}").get("defaults", [])
        if isinstance(entry, dict)
        for key, value in entry.items()
        if key.startswith("override /")
    ]
    lines = [f"### `{group}={choice}`\n"]
    lines += [_prose(head_comment(text)) + "\n"] if head_comment(text) else []
    lines += [f"Brings {' and '.join(brought)}.\n"] if brought else []
    node, comments = _composed(f"{group}={choice}")[group], key_comments(text)
    keys = [key for key in node if key != "_target_"]
    if keys:
        lines += ["| key | default | meaning |", "|---|---|---|"]
        lines += [f"| `{key}` | `{_written(node._get_node(key))}` | {_prose(comments.get(key, ''))} |" for key in keys]
    else:
        lines.append("It has no keys.")
    return "\n".join(lines) + "\n"


def _entries(kind: Any, frozen: Any) -> Iterator[tuple[Any, Any]]:
    """Each field of a dataclass that OmegaConf takes, with the field of the frozen one."""
    yield from zip(dataclasses.fields(kind), dataclasses.fields(frozen), strict=True)


def _leaves(kind: Any, frozen: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    for entry, own in _entries(kind, frozen):
        group = entry.type if dataclasses.is_dataclass(entry.type) else group_in(entry.type)
        own_group = own.type if dataclasses.is_dataclass(own.type) else group_in(own.type)
        if group is not None:
            yield from _leaves(group, own_group, f"{prefix}{entry.name}.")
        else:
            yield f"{prefix}{entry.name}", entry, own


def _node(config: DictConfig, key: str) -> Any:
    """The node of a dotted key; None inside of a group that is null."""
    *parents, name = key.split(".")
    for parent in parents:
        config = config[parent]
    return None if config is None else config._get_node(name)


def _row(key: str, entry: Any, frozen: Any, node: Any, comment: str, others: str) -> str:
    kind, unit = _kind(entry, frozen), entry.metadata.get("unit", "")
    return f"| `{key}` | {kind} | `{_written(node)}` | {unit} | {_prose(comment)} | {others} |"


def _kind(entry: Any, frozen: Any) -> str:
    """The type as an error message says it; of a string or a list of strings OmegaConf knows no type."""
    types = get_args(frozen.type)
    if any(get_origin(one) is tuple for one in types):
        return "a string or a list of strings" + (", or null" if type(None) in types else "")
    return describe(entry).removeprefix("expected ")


def _written(node: Any) -> str:
    """A value as YAML has it in one line, interpolations as they are written."""
    value = OmegaConf.to_container(node) if OmegaConf.is_config(node) else node._value() if node is not None else None
    return _yaml_value(value)


def _yaml_value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ",".join(map(_yaml_value, value)) + "]"
    if isinstance(value, str) and (value.startswith("${") or (value and yaml.safe_load(value) == value)):
        return value
    return json.dumps(value)


def _prose(comment: str) -> str:
    """A comment as Markdown: pages that it names become links."""
    return re.sub(r"docs/([\w-]+)\.md", r"[\1](\1.md)", comment.replace("<", "&lt;").replace("|", r"\|"))


def _text(name: str) -> str:
    return (conf_dir() / f"{name}.yaml").read_text(encoding="utf-8")


def _yaml(name: str) -> dict[str, Any]:
    return yaml.safe_load(_text(name)) or {}


def _composed(*overrides: str) -> DictConfig:
    register_schema()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("config", list(overrides))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
