"""Finds the action that `action` names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parallax_runner.config.named_class import find_class, known_names

if TYPE_CHECKING:
    from parallax_runner.config.schema import RunConfig

KEY = "action"
BUILT_IN = {
    "train": "parallax_runner.actions.train.Train",
    "plan": "parallax_runner.actions.plan.Plan",
    "verify": "parallax_runner.actions.verify.Verify",
    "evaluate": "parallax_runner.actions.evaluate.Evaluate",
    "predict": "parallax_runner.actions.predict.Predict",
    "export": "parallax_runner.actions.export.Export",
    "search": "parallax_runner.actions.search.Search",
    "simulate": "parallax_runner.actions.simulate.Simulate",
    "sync": "parallax_runner.actions.sync.Sync",
}
ENTRY_POINTS = "parallax_runner.actions"
BASE = "parallax_runner.actions.action.Action"


def action_named(name: str) -> Any:
    """Returns the `Action` with this name. Raises LookupError, with the reason as a sentence, if there is none."""
    return find_class(name, built_in=BUILT_IN, group=ENTRY_POINTS, base=BASE)()


def action_of(config: RunConfig) -> Any:
    """Returns the `Action` of a configuration that was checked."""
    return action_named(config.action)


def names_of_actions() -> list[str]:
    """Returns the names of all actions that are not dotted paths."""
    return known_names(BUILT_IN, ENTRY_POINTS)


def keys_of_other_actions(name: str) -> list[str]:
    """Returns the groups of keys that only built-in actions other than this one use."""
    own = action_named(name).own_keys
    others = (key for other in BUILT_IN for key in action_named(other).own_keys)
    return [key for key in dict.fromkeys(others) if key not in own]


def owner_of(group: str) -> str:
    """Returns the name of the built-in action to which the keys of a group belong. Raises LookupError if there is
    none."""
    for name in BUILT_IN:
        if group in action_named(name).own_keys:
            return name
    raise LookupError(f"the keys of group {group} belong to no action")
