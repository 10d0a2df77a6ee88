"""What `--help` prints. Hydra's own lists every group of every plugin, and takes three times as long."""

import string
from collections.abc import Iterator, Sequence

from hydra.core.object_type import ObjectType
from omegaconf import OmegaConf, open_dict

from parallax_runner.config.compose import Composer, resolve


def help_text(composer: Composer, overrides: Sequence[str], *, resolved: bool) -> str:
    """The template in `conf/hydra/help/`, with the groups and the configuration that these overrides make."""
    job = composer.job(overrides)
    config, template = job.config, job.config.hydra.help.template
    if resolved:
        config = resolve(job)
    else:
        with open_dict(config):
            del config["hydra"]
    groups = "\n".join(f"{group}: {', '.join(choices)}" for group, choices in sorted(_groups(composer)))
    return string.Template(template).safe_substitute(APP_CONFIG_GROUPS=groups, CONFIG=OmegaConf.to_yaml(config))


def _groups(composer: Composer) -> Iterator[tuple[str, list[str]]]:
    """All groups but Hydra's own, with their choices."""
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
