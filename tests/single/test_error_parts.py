"""An error about a setting: its parts, the message that they make, and how they travel between processes."""

from __future__ import annotations

import json
import pickle

import pytest

from parallax_runner.errors import (
    COMMAND_LINE,
    CaptureError,
    CollectiveError,
    ConfigError,
    DataError,
    ErrorParts,
    FitError,
    ParallaxError,
    PlanError,
    ScriptError,
    Setting,
)

STEPS = Setting.of("train.steps", 5, where=COMMAND_LINE)


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        (STEPS, "train.steps=5 (command line)"),
        (Setting.of("train.patience", None), "train.patience=null"),
        (Setting("cluster.remote_shell", None), "cluster.remote_shell"),
        (Setting.of("comm.sync", False, where="own.yaml:3"), "comm.sync=false (own.yaml:3)"),
        (Setting.of("data.cardinalities", 0, item=1), "data.cardinalities[1]=0"),
        (Setting.of("profile.steps", (1, 2)), "profile.steps=[1, 2]"),
        (Setting("data.path", ""), "data.path="),
    ],
)
def test_a_setting_is_shown_as_a_user_types_it(setting: Setting, shown: str) -> None:
    assert str(setting) == shown


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ConfigError("nothing is near"), "nothing is near"),
        (ConfigError("nothing is near").about(remedy="add one"), "nothing is near; add one"),
        (ConfigError("too few").about(STEPS), "train.steps=5 (command line): too few"),
        (ConfigError("too few").about(STEPS, remedy="add some"), "train.steps=5 (command line): too few; add some"),
        (ConfigError("Too few.").about(STEPS, remedy="Add some."), "train.steps=5 (command line): Too few. Add some."),
        (ConfigError("too few").about(STEPS, Setting("a", "b")), "train.steps=5 (command line), a=b: too few"),
        (ConfigError("too few").about(), "too few"),
        (ConfigError(), ""),
    ],
)
def test_the_message_consists_of_the_parts(error: ConfigError, message: str) -> None:
    assert str(error) == message


def test_the_message_of_a_job_begins_with_its_title() -> None:
    assert str(ErrorParts("too few", (STEPS,), job="job 1 (a=b): ")).startswith("job 1 (a=b): train.steps=5 (comm")


def test_only_the_command_line_is_named_anew() -> None:
    parts = ErrorParts("wrong", (STEPS, Setting("a", "b", where="own.yaml:3"), Setting("c", "d")))
    assert str(parts.given_by("fit")) == "train.steps=5 (fit), a=b (own.yaml:3), c=d: wrong"


def test_the_parts_travel_as_json() -> None:
    parts = ErrorParts("wrong", (STEPS, Setting("data.cardinalities", "0", item=1)), remedy="omit it", job="job 1: ")
    assert ErrorParts.from_json(json.loads(json.dumps(parts.as_json()))) == parts


def test_no_password_travels() -> None:
    parts = ErrorParts("see http://me:secret@host/", (Setting("tracking.uri", "http://me:secret@host/"),))
    assert "secret" not in json.dumps(parts.as_json())
    assert "secret" not in str(ConfigError(parts.reason).about(*parts.settings))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"reason": "x"},
        {"reason": "x", "settings": None},
        {"reason": "x", "settings": ["a"]},
        {"reason": "x", "settings": [{"name": "a"}]},
        {"reason": "x", "settings": [], "more": 1},
        {"reason": 5, "settings": []},
        {"reason": "x", "settings": [], "remedy": 5},
    ],
)
def test_anything_else_is_not_an_error(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not the parts of an error"):
        ErrorParts.from_json(fields)


def test_an_error_survives_another_process() -> None:
    error = ConfigError("too few").about(STEPS, remedy="add some")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    failed = pickle.loads(pickle.dumps(FitError("failed", exit_status=3)))
    assert (str(failed), failed.exit_status) == ("failed", 3)
    assert str(ScriptError("ended", exit_status=4)) == "ended"


@pytest.mark.parametrize("kind", [ConfigError, DataError, PlanError, CaptureError, CollectiveError])
def test_tensorflow_keeps_the_class_of_an_error(kind: type[ParallaxError]) -> None:
    """It raises an error of a traced function again: one of the same class, with a text that also names the line."""
    assert kind.__init__ is Exception.__init__
    assert str(kind("in user code: wrong")) == "in user code: wrong"
