"""Writes docs/configuration.md, which lists every key of the configuration, from the schema and the files in conf/.

The meaning of a key is the comment next to its value. The value is in the choice's file in conf/ or, if the schema sets
the default, in parallax_runner/config/schema.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from parallax_runner.config.comments import head_comment, key_comments
from parallax_runner.config.compose import register_schema
from parallax_runner.config.key_meanings import (
    SCHEMA_GROUPS,
    KeyMeaning,
    keys_of_config_file,
    keys_of_group,
    node_of,
    value_of,
)
from parallax_runner.config.location import conf_dir
from parallax_runner.config.schema import FREE_GROUPS

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
INTRODUCTION = """# Configuration reference

This page is generated: `scripts/docs reference` writes it from `conf/` and `parallax_runner/config/schema.py`.

Every key can be set on the command line, in
[Hydra's override syntax](https://hydra.cc/docs/1.3/advanced/override_grammar/basic/): `group=choice` selects a file in
`conf/`, and `group.key=value` sets one key. The default column has the values of each group's default choice.
The last column lists the choices with another value. `???` marks a value that you must give. `${key}` is the value of
another key.
"""
TABLE_OF_KEYS = "| key | type | default | unit | meaning | other choices |\n|---|---|---|---|---|---|"


def page() -> str:
    """Returns the whole text of docs/configuration.md."""
    parts = [INTRODUCTION, _overview(), "## Top level\n", _top_level()]
    for group in _groups():
        if group in SCHEMA_GROUPS:
            parts += [f"## `{group}`\n", _choices(group), _typed_keys(group)]
    for group in FREE_GROUPS:
        parts += [f"## `{group}`\n", *(_free_choice(group, choice) for choice in _group_choices(group))]
    parts += [
        "## `experiment`\n",
        "An experiment is a named set of overrides, which are in its file in `conf/experiment/`.\n",
        _choices("experiment"),
    ]
    return "\n".join(parts)


def _groups() -> dict[str, str | None]:
    """Returns each group's default choice, in the order of conf/config.yaml."""
    defaults = _yaml("config")["defaults"]
    return {
        group: choice
        for entry in defaults
        if isinstance(entry, dict)
        for group, choice in entry.items()
        if not group.startswith("override ")
    }


def _group_choices(group: str) -> list[str]:
    """Returns all choices of a group, the default choice first."""
    names = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
    return sorted(names, key=lambda name: name != _groups()[group])


def _overview() -> str:
    rows = ["<!-- groups -->\n", "| group | choices, the default first |", "|---|---|"]
    for group, default in _groups().items():
        none = "none " if default is None else ""
        rows.append(f"| `{group}` | {none}{' '.join(f'`{choice}`' for choice in _group_choices(group))} |")
    return "\n".join(rows) + "\n"


def _choices(group: str) -> str:
    rows = ["| choice | description |", "|---|---|"]
    for choice in _group_choices(group):
        rows.append(f"| `{group}={choice}` | {_prose(head_comment(_text(f'{group}/{choice}')))} |")
    return "\n".join(rows) + "\n"


def _top_level() -> str:
    config = _composed()
    rows = [TABLE_OF_KEYS]
    rows += [_row(key, "", value_of(node_of(config, key.name)), "") for key in keys_of_config_file(_text("config"))]
    return "\n".join(rows) + "\n"


def _typed_keys(group: str) -> str:
    choices = _group_choices(group)
    configs = {choice: _composed(f"{group}={choice}")[group] for choice in choices}
    rows = [TABLE_OF_KEYS]
    for key in keys_of_group(group, [_text(f"{group}/{choice}") for choice in choices]):
        values = {choice: value_of(node_of(config, key.name)) for choice, config in configs.items()}
        default = values[choices[0]]
        others = ", ".join(f"`{choice}`: `{text}`" for choice, text in values.items() if text != default)
        rows.append(_row(key, f"{group}.", default, others))
    return "\n".join(rows) + "\n"


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
    lines += [f"Selects {' and '.join(brought)}.\n"] if brought else []
    node, comments = _composed(f"{group}={choice}")[group], key_comments(text)
    keys = [key for key in node if key != "_target_"]
    if keys:
        lines += ["| key | default | meaning |", "|---|---|---|"]
        lines += [f"| `{key}` | `{value_of(node._get_node(key))}` | {_prose(comments.get(key, ''))} |" for key in keys]
    else:
        lines.append("It has no keys.")
    return "\n".join(lines) + "\n"


def _row(key: KeyMeaning, prefix: str, default: str, others: str) -> str:
    return f"| `{prefix}{key.name}` | {key.kind} | `{default}` | {key.unit} | {_prose(key.meaning)} | {others} |"


def _prose(comment: str) -> str:
    """Converts a comment to Markdown, with links to the pages that it names."""
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
