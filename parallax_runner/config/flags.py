"""Handles command-line words that begin with a dash: `--version`, and words that Hydra's parser rejects."""

import argparse
import difflib
from collections.abc import Callable, Sequence
from typing import NoReturn

from parallax_runner.config.compose import Composer
from parallax_runner.config.explain import known_keys
from parallax_runner.config.suggestions import nearest_key
from parallax_runner.errors import ConfigError, Setting

VERSION_MEANING = "Show the version and the commit of parallax_runner, and exit"


def parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parses the words. Raises ConfigError, with a one-line message, if the parser rejects a word."""
    parser.exit_on_error = False
    try:
        arguments, unknown = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        setting = next((word for word in words if word.startswith("-") and "=" in word and "." in word), None)
        if setting is not None:
            raise _refusal(setting, words, parser) from error
        raise ConfigError(f"{error} (--hydra-help shows all flags)") from error
    if unknown:
        raise _refusal(unknown[0], words, parser)
    return arguments


class ShowVersion(argparse.Action):
    """Prints this project's version instead of Hydra's, and exits."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, const: Callable[[], str]) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=VERSION_MEANING)
        self._version = const

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Prints the version and exits. argparse calls this method when it reads the flag."""
        print(self._version())
        raise SystemExit(0)


def _refusal(word: str, words: Sequence[str], parser: argparse.ArgumentParser) -> ConfigError:
    if not word.startswith("-"):
        return ConfigError("a flag separates this setting from the others").about(
            Setting.typed(word), remedy="write all flags before the settings"
        )
    name, has_value, value = word.lstrip("-").partition("=")
    behind = None if has_value else _value_behind(word, words)
    about = Setting.typed(word if behind is None else f"{word} {behind}")
    key = nearest_key(name, known_keys(Composer().job([]).config))
    flags = [flag for action in parser._actions for flag in action.option_strings]
    near = difflib.get_close_matches(f"--{name}", flags, n=1, cutoff=0.75)
    if near:
        return ConfigError("there is no such flag.").about(about, remedy=f"Did you mean {near[0]}?")
    if key is None:
        remedy = "Write settings as key=value; --help all shows all keys."
        return ConfigError("there is no such flag.").about(about, remedy=remedy)
    hint = f"Did you mean {key}={behind or value or 'VALUE'}?"
    return ConfigError("write settings as key=value, without dashes.").about(about, remedy=hint)


def _value_behind(word: str, words: Sequence[str]) -> str | None:
    """Returns the word after `word` if it can be a value, as in `--key value`."""
    behind = words[words.index(word) + 1 :]
    if not behind or behind[0].startswith("-") or "=" in behind[0]:
        return None
    return behind[0]
