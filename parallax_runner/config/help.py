"""The text of `--help`. Hydra's own help lists the groups of all plugins and is three times slower."""

import string
from collections.abc import Iterator, Sequence

from hydra.core.object_type import ObjectType

from parallax_runner.config.compose import Composer
from parallax_runner.config.key_help import key_help
from parallax_runner.errors import ConfigError


def help_text(composer: Composer, words: Sequence[str], *, resolved: bool) -> str:
    """Returns the help page for all groups, made from the template in `conf/hydra/help/`. If some words are not
    overrides, such as `train`, returns help for only the keys that these words name."""
    topics = [word for word in words if "=" not in word and not word.startswith("~")]
    overrides = [word for word in words if word not in topics]
    if topics:
        return key_help(composer, topics, overrides, resolved=resolved)
    if resolved:
        raise ConfigError("--resolve needs --cfg, or --help with a group, as in --help train --resolve")
    template = composer.job(overrides).config.hydra.help.template
    groups = "\n".join(f"{group}: {', '.join(choices)}" for group, choices in sorted(_groups(composer)))
    return string.Template(template).safe_substitute(APP_CONFIG_GROUPS=groups)


def _groups(composer: Composer) -> Iterator[tuple[str, list[str]]]:
    """Yields all groups except Hydra's own, with their choices."""
    waiting = [""]
    while waiting:
        parent = waiting.pop()
        for name in composer.options(parent, ObjectType.GROUP):
            group = f"{parent}/{name}".strip("/")
            if group == "hydra":
                continue
            waiting.append(group)
            choices = composer.options(group, ObjectType.CONFIG)
            if choices:
                yield group, choices
