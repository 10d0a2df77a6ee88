"""docs/configuration.md is what the generator writes, and says what conf/ and the schema say."""

import dataclasses
import re
from collections.abc import Iterator

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from parallax_runner.config.comments import class_comments, head_comment, key_comments
from parallax_runner.config.compose import register_schema
from parallax_runner.config.location import conf_dir
from parallax_runner.config.schema import RunConfig
from scripts.configuration_reference import PAGE, page

TEXT = PAGE.read_text(encoding="utf-8")
FREE_GROUPS = ("model", "data", "optimizer")
TYPED_GROUPS = ("train", "comm", "partition", "cluster", "ckpt", "profile", "tracking")
WITHOUT_UNIT = {"train.seed", "profile.steps", "profile.range", "profile.worker"}


def rows(text: str) -> list[list[str]]:
    """The rows of all tables, without heads, that begin with a code."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:3] == "| `"]


def section(heading: str) -> str:
    """What stands under a heading, such as «## `train`», up to the next one of its level or above."""
    _, found, after = TEXT.partition(f"\n{heading}\n")
    assert found, heading
    level = heading.partition(" ")[0]
    return re.split(rf"^#{{1,{len(level)}}} ", after, maxsplit=1, flags=re.MULTILINE)[0]


def keys_of(group: str) -> dict[str, list[str]]:
    """Type, default, unit, meaning and other choices of each key of a typed group, or of the top level."""
    found = section("## Top level" if group == "" else f"## `{group}`")
    return {codes(row[0])[0]: row[1:] for row in rows(found) if len(row) == 6}


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def value(text: str) -> object:
    """Read as the configuration's own YAML is, interpolations as they are written."""
    node = OmegaConf.create(f"value: {text}")._get_node("value")
    return OmegaConf.to_container(node) if OmegaConf.is_config(node) else node._value()


def composed(*overrides: str) -> DictConfig:
    register_schema()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("config", list(overrides))


def leaves(node: DictConfig, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted names and values, interpolations as they are written; an empty mapping is a value."""
    for key in node:
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none() and len(child):
            yield from leaves(child, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", OmegaConf.to_container(child) if OmegaConf.is_config(child) else child._value()


def choices_in_conf(group: str) -> set[str]:
    return {path.stem for path in (conf_dir() / group).glob("*.yaml")}


def test_page_is_what_the_generator_writes() -> None:
    assert page() == TEXT, "scripts/docs reference writes docs/configuration.md again"


def groups() -> dict[str, str]:
    _, _, after = TEXT.partition("<!-- groups -->")
    return {codes(group)[0]: choices for group, choices in rows(after.partition("\n## ")[0])}


def test_every_group_and_choice_is_there() -> None:
    folders = {path.name for path in conf_dir().iterdir() if path.is_dir() and path.name != "hydra"}
    assert {group: set(codes(choices)) for group, choices in groups().items()} == {
        group: choices_in_conf(group) for group in folders
    }
    for group in (*TYPED_GROUPS, "experiment"):
        described = {codes(row[0])[0] for row in rows(section(f"## `{group}`")) if len(row) == 2}
        assert described == {f"{group}={choice}" for choice in choices_in_conf(group)}


def test_first_choice_is_the_default() -> None:
    defaults = yaml.safe_load((conf_dir() / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    chosen = {group: name for entry in defaults if isinstance(entry, dict) for group, name in entry.items()}
    for group, choices in groups().items():
        name = chosen[group]
        assert choices.startswith("none") if name is None else codes(choices)[0] == name, group


def test_typed_groups_are_those_of_the_schema() -> None:
    in_schema = {field.name for field in dataclasses.fields(RunConfig) if dataclasses.is_dataclass(field.type)}
    assert set(TYPED_GROUPS) == in_schema - {
        "sweep",
        "read",
        "predict",
        "update",
        "simulate",
    }  # no groups: they stand in config.yaml itself


def test_keys_and_defaults_of_the_top_level() -> None:
    config = composed()
    expected = {key: text for key, text in leaves(config) if key.partition(".")[0] not in {*TYPED_GROUPS, *FREE_GROUPS}}
    assert {key: value(codes(row[1])[0]) for key, row in keys_of("").items()} == expected
    assert len(expected) > 8


@pytest.mark.parametrize("group", TYPED_GROUPS)
def test_keys_and_values_of_every_choice_of_a_typed_group(group: str) -> None:
    rows_of_keys = keys_of(group)
    for choice in choices_in_conf(group):
        found = dict(leaves(composed(f"{group}={choice}")[group], f"{group}."))
        if found.pop("comm.routes", "given") is None:  # comm=auto has none
            found |= {"comm.routes.dense": None, "comm.routes.sparse": None}
        listed = {}
        for key, row in rows_of_keys.items():
            others = dict(re.findall(r"`([^`]+)`: `([^`]+)`", row[4]))
            listed[key] = value(others.get(choice, codes(row[1])[0]))
        assert listed == found, choice


def test_keys_and_defaults_of_the_free_groups() -> None:
    headings = set(re.findall(r"^### `(.*)`$", TEXT, re.MULTILINE))
    in_conf = {f"{group}={choice}" for group in FREE_GROUPS for choice in choices_in_conf(group)}
    assert headings == in_conf
    for choice in in_conf:
        group = choice.split("=")[0]
        values = {key: each for key, each in leaves(composed(choice)[group]) if key != "_target_"}
        assert {codes(row[0])[0]: value(codes(row[1])[0]) for row in rows(section(f"### `{choice}`"))} == values, choice
        assert ("It has no keys." in section(f"### `{choice}`")) == (not values)


def test_what_a_choice_brings_along() -> None:
    brought = {
        choice: codes(line)
        for choice in re.findall(r"^### `(.*)`$", TEXT, re.MULTILINE)
        for line in re.findall(r"^Selects (`.*)\.$", section(f"### `{choice}`"), re.MULTILINE)
    }
    assert brought["model=simple"] == ["data=linear", "optimizer=gradient_descent"]
    for choice, overrides in brought.items():
        config = composed(choice)
        for group, name in (code.split("=") for code in overrides):
            assert config[group] == composed(f"{group}={name}")[group]


def test_named_actions_are_those_of_the_schema() -> None:
    actions = RunConfig.__dataclass_fields__["action"].metadata["names"]
    assert keys_of("")["action"][0] == f"one of {', '.join(actions)}, or a class such as package.module.Class"
    words = re.findall(r"\w+", keys_of("")["action"][3])
    assert [action for action in actions if action not in words] == []


def test_every_key_of_the_schema_has_a_meaning_and_every_number_a_unit() -> None:
    for group in ("", *TYPED_GROUPS):
        for key, (kind, _, unit, meaning, _) in keys_of(group).items():
            assert meaning, f"{key}: write a comment beside its value, in conf/ or in the schema"
            is_number = kind.startswith(("an integer", "a number"))
            assert not is_number or unit or key in WITHOUT_UNIT, f"{key}: metadata has no unit"


def test_comments_of_a_file() -> None:
    text = "# @package _global_\n# Head,\n# two lines.\na: 1 # of a\n# above\nb:\n  c: 'x' # of c\nd: \"a#b\"\n"
    assert head_comment(text) == "Head, two lines."
    assert key_comments(text) == {"a": "of a", "b": "above", "b.c": "of c"}


@dataclasses.dataclass
class Inner:
    # Two
    # lines.
    first: int = 0
    second: int = 0  # Behind.


@dataclasses.dataclass
class Outer:
    bare: int = 0
    inner: Inner | None = None


def test_comments_of_a_dataclass() -> None:
    assert class_comments(Outer) == {"inner.first": "Two lines.", "inner.second": "Behind."}
