"""Every rule of the configuration is found by the one list."""

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path

from parallax_runner.config import rules
from parallax_runner.config.validate import RULES

FOLDER = Path(rules.__file__).parent
# Rules that need something else than the configuration: what Hydra composed, Hydra's own settings, or the other jobs of
# a sweep.
OF_THEIR_OWN = {"check_keys", "check_free_groups", "check_action_name", "check_hydra", "check_own_folders"}
# Parts of rules that two modules share.
SHARED = {"check_even", "check_choice_name"}


def checks() -> dict[str, Callable[..., object]]:
    """The public functions of the folder, by name."""
    found: dict[str, Callable[..., object]] = {}
    for path in FOLDER.glob("*.py"):
        name = f"{rules.__name__}.{path.stem}"
        members = inspect.getmembers(importlib.import_module(name), inspect.isfunction)
        found |= {key: function for key, function in members if function.__module__ == name and key[0] != "_"}
    return {key: function for key, function in found.items() if key.startswith("check_")}


def test_every_rule_is_listed_once() -> None:
    listed = [rule.check.__name__ for rule in RULES]
    assert len(set(listed)) == len(listed) > 20
    assert set(listed) | OF_THEIR_OWN | SHARED == set(checks())


def test_every_rule_takes_the_configuration_and_its_origins() -> None:
    for rule in RULES:
        assert list(inspect.signature(rule.check).parameters.values())[1].name == "origins", rule.check.__name__


def test_every_rule_tells_what_it_refuses() -> None:
    for rule in RULES:
        assert "Raises ConfigError" in (rule.check.__doc__ or ""), rule.check.__name__


def test_no_other_module_has_a_rule() -> None:
    others = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.parent.glob("*.py")}
    assert [name for name, text in others.items() if re.search(r"\ndef check_\w+\(\s*config: RunConfig", text)] == []
