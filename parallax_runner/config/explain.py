"""Builds the error message for an invalid configuration. The message contains the key, its value, the value's origin,
the expected value, and the nearest valid name."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

import yaml
from hydra.core.override_parser.types import Override
from hydra.errors import MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from parallax_runner.config.frozen import plain
from parallax_runner.config.location import conf_dir
from parallax_runner.config.origins import Origins, flatten, readable
from parallax_runner.config.schema import FREE_GROUPS, RunConfig, keys_of
from parallax_runner.config.structured import STRUCTURED, optional_groups
from parallax_runner.config.suggestions import nearest, nearest_key, remedy_for_choice, remedy_for_key
from parallax_runner.errors import COMMAND_LINE, ConfigError, Setting
from parallax_runner.errors import written as written_plain

ENV_COPY = "hydra.job.env_copy"
MOST_CHARS = 400  # maximum length of user input in a message
_TYPE_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a string", dict: "a mapping"}
_LIMITS = {"minimum": "at least", "maximum": "at most", "above": "greater than"}


def refusal(key: str, origins: Origins, expected: str, *, value: Any = None, hint: str | None = None) -> ConfigError:
    """Returns the error for one key. The message shows the value as written at the key's origin, and also `value` if
    the written value is an interpolation. Without an origin, the message shows only `value`."""
    return ConfigError(f"{expected}.").about(setting_with_origin(key, origins, value=value), remedy=_suggestion(hint))


def setting_with_origin(key: str, origins: Origins, *, value: Any = None) -> Setting:
    """Returns a key for a message, with its value and its origin. `value` is as in `refusal`."""
    origin = origins.of(key)
    if origin is None:
        return Setting(key, shown(written(value)), where="default")
    told = shown(written(origin.value))
    if value is not None and "${" in told:
        told += f" [{shown(written(value))}]"
    return Setting(key, told, where=origin.where)


def _suggestion(hint: str | None) -> str | None:
    return None if hint is None else f"Did you mean {hint}?"


def written(value: Any) -> str:
    """Returns a value as a user types it on a command line."""
    return written_plain(plain(value))


def known_keys(config: DictConfig) -> list[str]:
    """Returns every dotted key of a configuration. Hydra's own keys come last, so that the project's keys are suggested
    first."""
    content = OmegaConf.to_container(config, resolve=False)
    assert isinstance(content, dict)
    own = {name: value for name, value in content.items() if name != "hydra"}
    own.setdefault("experiment", None)
    hydra = {"hydra": content["hydra"]} if "hydra" in content else {}
    return [key for key, _ in flatten(own)] + [key for key, _ in flatten(hydra)]


def expectation(key: str) -> str | None:
    """Returns a phrase that describes the value that the schema expects for a key, such as "expected an integer, at
    least 1". Returns None for a key that is not in the schema."""
    owner: Any = STRUCTURED
    found = None
    for part in key.split("."):
        found = next((one for one in dataclasses.fields(owner) if one.name == part), None) if owner else None
        owner = found.type if found is not None and dataclasses.is_dataclass(found.type) else None
    return describe(found) if found is not None else None


def describe(entry: "dataclasses.Field[Any]") -> str:
    """Returns a description of the value that a field of the schema expects."""
    types = _types_of(entry)
    text = f"expected {_kinds(entry, types)}"
    if "choices" in entry.metadata:
        text = "expected one of " + ", ".join(entry.metadata["choices"])
    if "names" in entry.metadata:
        text = f"expected one of {', '.join(entry.metadata['names'])}, or a class such as package.module.Class"
    for name, phrase in _LIMITS.items():
        if name in entry.metadata:
            text += f", {phrase} {entry.metadata[name]}"
    if type(None) in types:
        text += ", or null"
    return text


def _types_of(entry: "dataclasses.Field[Any]") -> list[Any]:
    """Returns the types in a union, the type of a list's items, or the field's only type."""
    if get_origin(entry.type) is dict:
        return [dict]
    return list(get_args(entry.type)) or [entry.type]


def _kinds(entry: "dataclasses.Field[Any]", types: Sequence[Any]) -> str:
    if get_origin(entry.type) is list:
        names = [f"a list of {_TYPE_NAMES[one].split()[1]}s" for one in types]
        return " or ".join(names)
    names = [_TYPE_NAMES[one] for one in types if one in _TYPE_NAMES]
    if any(dataclasses.is_dataclass(one) for one in types):
        names.append("a mapping")
    return " or ".join(names) or "another value"


def syntax(line: str, error: Exception) -> ConfigError:
    """Returns the error for an argument that is not a valid override."""
    lines = [one for one in str(error).splitlines() if one and not one.startswith(("See https://hydra.cc", "Error "))]
    detail = re.sub(r" expecting .*", "", lines[0])
    detail = detail.replace("missing EQUAL", "missing '='").replace("'<EOF>'", "the end")
    if detail.startswith("LexerNoViableAlt"):
        detail = _unquoted(line, lines)
    return ConfigError(f"expected key=value in Hydra's override syntax: {shown(detail)}").about(
        Setting.typed(shown(line))
    )


def _unquoted(line: str, lines: Sequence[str]) -> str:
    """Describes the character that Hydra's lexer rejects. `lines` are the lines of the lexer's message, in which a
    caret marks the column."""
    if "\n" in line:
        return "a line break, which must be quoted"
    column = lines[1].index("^") - lines[0].index(line)
    fault = "which opens a string that is not closed" if line[column] in "'\"" else "which must be quoted"
    return f"{line[column]!r}, {fault}"


def unreadable_value(line: str, reason: str) -> ConfigError:
    """Returns the error for an override whose value cannot be read."""
    return ConfigError(f"the value cannot be read: {reason}").about(Setting.typed(shown(line)))


def shown(text: str) -> str:
    """Returns user input for a message. Very long text is shortened, and unprintable characters are escaped."""
    cut = text if len(text) <= MOST_CHARS else f"{text[: MOST_CHARS // 2]}…{text[-MOST_CHARS // 4 :]}"
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in cut)


def needs_multirun(override: Override) -> ConfigError:
    """Returns the error for several values without -m."""
    key, _, value = str(override.input_line).partition("=")
    return ConfigError("several values define a sweep, which needs -m (--multirun)").about(
        Setting(key, value, where=COMMAND_LINE), remedy=f"write a list as {key}=[{value}]"
    )


def given_twice(swept: Override, other: Override) -> ConfigError:
    """Returns the error for a swept key that the command line sets a second time."""
    return ConfigError(f"{shown(str(other.input_line))} sets the same key").about(
        Setting.typed(shown(str(swept.input_line))), remedy="omit one of them"
    )


def sweep(lines: str, error: Exception) -> ConfigError:
    """Returns the error for a sweep that cannot be expanded into jobs."""
    return ConfigError(f"this sweep cannot be expanded into jobs: {_first_line(error)}").about(Setting.typed(lines))


def no_value(override: Override) -> ConfigError:
    """Returns the error for an empty range, or a pattern without matches."""
    return ConfigError("the sweep has no values and therefore no jobs").about(Setting.typed(str(override.input_line)))


def check_choice(override: Override, options: Sequence[str]) -> None:
    """Raises ConfigError for a choice that a group does not have."""
    group, value = override.key_or_group, override.value()
    if override.package is not None and not group.startswith("hydra/"):
        raise ConfigError("the package of a group cannot be changed.").about(
            Setting.typed(str(override.input_line)), remedy=_suggestion(f"{group}={written(value)}")
        )
    optional = group == "experiment" and value is None
    if optional or (isinstance(value, str) and value in options):
        check_sign(override)
        return
    raise _unknown_choice(group, str(override.input_line).partition("=")[2], COMMAND_LINE, options)


def check_sign(override: Override) -> None:
    """Raises ConfigError for a group of this package with a plus sign, or for a group of the user's own without one."""
    group, value = override.key_or_group, written(override.value())
    if group.startswith("hydra/"):
        return
    is_of_package = (conf_dir() / group).is_dir()  # a user adds other groups with --config-dir
    if override.is_add() and is_of_package:
        raise ConfigError(f"{group} always has a choice.").about(
            Setting.typed(str(override.input_line)), remedy=_suggestion(f"{group}={value}")
        )
    if not override.is_add() and not is_of_package:
        raise ConfigError(f"{group} is a group of your own, which needs a plus sign.").about(
            Setting.typed(str(override.input_line)), remedy=_suggestion(f"+{group}={value}")
        )


def check_removal(override: Override) -> None:
    """Raises ConfigError for `~key` if the schema needs the key. Arguments in `model`, `data` and `optimizer` can
    be removed."""
    top = override.key_or_group.split(".")[0]
    needed = {entry.name for entry in keys_of(RunConfig)}
    if top in needed and (top not in FREE_GROUPS or top == override.key_or_group):
        raise ConfigError(f"{override.key_or_group} cannot be removed").about(
            Setting.typed(str(override.input_line)), remedy="set another value"
        )


def _unknown_choice(group: str, value: str, where: str, options: Sequence[str]) -> ConfigError:
    return ConfigError(f"no such choice; expected one of {', '.join(sorted(options))}.").about(
        Setting(group, value, where=where), remedy=remedy_for_choice(group, value, options)
    )


def unknown_key(key: str, origins: Origins, known: Sequence[str]) -> ConfigError:
    """Returns the error for an unknown key."""
    parent = key.rpartition(".")[0]
    value = _value(key, origins)
    if parent == "tracking.tags":
        return refusal(key, origins, "a new tag needs a plus sign", hint=f"+{key}={written(value)}")
    hint = nearest_key(key, known)
    beside = _names_below(parent, known)
    if not beside and parent in dict(optional_groups(STRUCTURED)):
        group = parent.partition(".")[0]
        reason = f"{parent} is null under this choice of {group}, so no key below it can be set; choose another {group}"
        return refusal(key, origins, reason)
    place = f"; {parent} has {', '.join(beside)}" if parent and beside else " or group"
    remedy = remedy_for_key(key)
    if remedy is not None:
        return ConfigError(f"unknown key{place}.").about(setting_with_origin(key, origins), remedy=remedy)
    can_be_written = value is not None and not isinstance(value, dict)
    if hint is not None and can_be_written:
        hint = f"{hint}={written(value)}"
    return refusal(key, origins, f"unknown key{place}", hint=hint)


def _names_below(parent: str, known: Sequence[str]) -> list[str]:
    return [key.rpartition(".")[2] for key in known if key.rpartition(".")[0] == parent]


def _value(key: str, origins: Origins) -> Any:
    origin = origins.of(key)
    return origin.value if origin else None


def composition(error: Exception, origins: Origins, known: Sequence[str]) -> ConfigError:
    """Returns the error that explains a failure inside Hydra or OmegaConf."""
    inner = _inner(error)
    if isinstance(inner, yaml.MarkedYAMLError):
        return _malformed_file(inner)
    if isinstance(error, MissingConfigException):
        return _missing_choice(error, origins)
    if (misplaced := _misplaced(origins)) is not None:
        return misplaced
    if isinstance(inner, OmegaConfBaseException) and inner.full_key:
        return _refused_value(inner, origins, known)
    if type(error) is KeyError and origins.of(ENV_COPY) is not None:
        return refusal(ENV_COPY, origins, f"the environment variable {error} is not set")
    unused = re.match(r"In '(.+)': Could not override '([^'@]+)", str(error))
    if unused is not None:
        return _unused_override(unused[1], unused[2], origins, known)
    for key in origins.given():
        if key not in known:
            return unknown_key(key, origins, known)
    return ConfigError(f"configuration: {_first_line(error)}")


def _refused_value(error: OmegaConfBaseException, origins: Origins, known: Sequence[str]) -> ConfigError:
    """Returns the error for a key that OmegaConf refuses. `error` names the key."""
    key = str(error.full_key).partition("[")[0]  # the key of the list, without the index of its item
    deeper = [name for name in origins.given(key) if name not in known]
    is_unknown = isinstance(error, ConfigKeyError | ConfigAttributeError) and key not in known
    if is_unknown and origins.of(key):
        return unknown_key(key, origins, known)
    if deeper:  # a key below an unknown key, or below a key with a plain value
        return unknown_key(deeper[-1], origins, known)
    if is_unknown:
        return unknown_key(key, origins, known)
    return refusal(key, origins, expectation(key) or _first_line(error))


def unresolvable(error: OmegaConfBaseException, config: DictConfig, origins: Origins) -> ConfigError:
    """Returns the error for a `${...}` that cannot be resolved. The error names the key, which OmegaConf's own error
    may not do."""
    written_as = {key: str(value) for key, value in flatten(OmegaConf.to_container(config, resolve=False))}
    failed = _failed_references(config, written_as)
    if not failed:
        return ConfigError(f"configuration: {_first_line(error)}")
    # A key that refers to another failed key is not the cause, unless the two keys refer to each other.
    first = [key for key in failed if not any(f"${{{other}}}" in written_as[key] for other in failed)]
    given = [key for key in failed if _is_typed(key, origins)]
    key = [*first, *given, *failed][0]
    return refusal(key, origins, f"the reference cannot be resolved: {_first_line(failed[key])}")


def _failed_references(config: DictConfig, written_as: Mapping[str, str]) -> dict[str, OmegaConfBaseException]:
    """Returns the keys whose `${...}` cannot be resolved, with OmegaConf's errors."""
    failed: dict[str, OmegaConfBaseException] = {}
    for key, value in written_as.items():
        if "${" not in value:
            continue
        try:
            OmegaConf.select(config, key)
        except OmegaConfBaseException as fault:
            failed[key] = fault
    return failed


def _is_typed(key: str, origins: Origins) -> bool:
    origin = origins.of(key)
    return origin is not None and origin.where == COMMAND_LINE


def _inner(error: Exception) -> Exception:
    """Returns the most informative cause of an error: OmegaConf's own error or the YAML parser's error."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, OmegaConfBaseException | yaml.MarkedYAMLError):
            return current
        current = current.__cause__ or current.__context__
    return error


def _malformed_file(error: yaml.MarkedYAMLError) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 0
    name = mark.name if mark else "a file"
    return ConfigError(f"{name}:{line}: invalid YAML: {error.problem or error}")


def _misplaced(origins: Origins) -> ConfigError | None:
    """Returns the error for a file of an experiment, or of a group of the user's own, whose keys are placed below the
    group's name because the file does not say that they are settings of the whole configuration."""
    fields = {entry.name for entry in dataclasses.fields(RunConfig)}
    for file in origins.files:
        top = file.package.split(".")[0]
        if top not in fields and top not in ("", "hydra"):
            return ConfigError(
                f"{readable(file.path)}: its keys are placed below «{file.package}», which is not a setting; add the "
                "line «# @package _global_» at the start of the file"
            )
    return None


def _missing_choice(error: MissingConfigException, origins: Origins) -> ConfigError:
    choice = (error.missing_cfg_file or "").removesuffix(".yaml")
    group, _, name = choice.rpartition("/")
    if not group:
        return ConfigError("there is no such file").about(Setting.typed(f"--config-name={name}"))
    return _unknown_choice(group, name, _in_defaults(group, name, origins), error.options or [])


def _unused_override(file: str, group: str, origins: Origins, known: Sequence[str]) -> ConfigError:
    """Returns the error for a defaults list that overrides an unknown group, or names a group without its package."""
    where, name = next(
        (
            (where, choice)
            for one in origins.files
            for other, choice, where in one.defaults(overrides=True)
            if other == group
        ),
        (file, "?"),
    )
    about = Setting(group, name, where=where)
    if group in known:
        return ConfigError("the package of the group is missing").about(
            about, remedy=f"write /{group}@_global_.{group}"
        )
    hint = nearest(group, [key for key in known if "." not in key])
    return ConfigError("there is no such group.").about(about, remedy=_suggestion(hint))


def _in_defaults(group: str, name: str, origins: Origins) -> str:
    """Returns the file and line of the defaults list that names this choice."""
    places = (where for file in origins.files for *choice, where in file.defaults() if choice == [group, name])
    return next(places, "a defaults list")


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__).rstrip(".")
