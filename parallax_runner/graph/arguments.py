"""Checks that the function named by `model`, `data` or `optimizer` accepts the arguments in its configuration group."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from parallax_runner.errors import CaptureError, ConfigError, ParallaxError, Setting
from parallax_runner.process.user_code import place_of

if TYPE_CHECKING:
    from parallax_runner.config.origins import Origins

# These errors come from a fault in the code or the machine, so no argument is blamed for them.
_OF_CODE = (NameError, ImportError, AttributeError, NotImplementedError, SyntaxError, MemoryError, OSError)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def check_callable(group: str, content: Mapping[str, Any], function: Any) -> None:
    """Raises ConfigError if `_target_` names something that cannot be called, such as a module."""
    if not callable(function):
        kind = type(function).__name__
        raise _refusal(group, content, "_target_", f"expected a function or class, got a value of type {kind}")


def check_names(
    group: str, content: Mapping[str, Any], function: Callable[..., Any], *, given: Collection[str] = ()
) -> None:
    """Raises ConfigError if the group has an argument that its function does not accept.

    `given` lists the names of the parameters that the caller passes by position. A function with `**kwargs` accepts any
    name.
    """
    signature = _signature(function)
    if signature is None or _takes_any(signature):
        return
    named = [name for name, one in signature.parameters.items() if one.kind in _BY_NAME and name not in given]
    for key in _arguments(content):
        if key not in named:
            reason = f"no such argument; {_taken(content, signature, given)}"
            raise _refusal(group, content, key, reason, nearest_of=named)


def check_call(
    group: str,
    content: Mapping[str, Any],
    function: Callable[..., Any],
    *,
    given: int = 0,
    by_name: Collection[str] = (),
) -> None:
    """Raises ConfigError if the function cannot be called with `given` positional arguments, the group's arguments, and
    the arguments `by_name`, which the caller passes."""
    if given and "_args_" in content:
        reason = "the runner passes the positional arguments itself; pass each argument by name"
        raise _refusal(group, content, "_args_", reason)
    signature = _signature(function)
    if signature is None or "_args_" in content:
        return
    names = (*tuple(signature.parameters)[:given], *by_name)
    check_names(group, content, function, given=names)
    try:
        signature.bind(*[None] * given, **_arguments(content), **dict.fromkeys(by_name))
    except TypeError as error:
        raise _refusal(group, content, "_target_", f"{error}; {_taken(content, signature, names)}") from error


@contextmanager
def blamed(
    group: str, content: Mapping[str, Any], function: Callable[..., Any] | None = None, *, given: int = 0
) -> Iterator[None]:
    """Replaces an error that an argument causes with a ConfigError that names the argument.

    The ConfigError names the first argument whose name and value appear in the original message. If there is none, it
    names all arguments that the user has set. If the user has set none, or if the type of the error shows that the code
    is at fault, the original error is raised.
    """
    try:
        yield
    except Exception as error:
        cause = error.__cause__ if isinstance(error, CaptureError) else error
        if not isinstance(cause, Exception) or isinstance(cause, ParallaxError):
            raise
        refusal = _refusal_of_any(group, content, cause, takes=_takes(content, function, given))
        if refusal is None:
            raise
        raise refusal from error


def _refusal_of_any(group: str, content: Mapping[str, Any], cause: Exception, *, takes: str) -> ConfigError | None:
    """Returns an error that names the arguments that can be the cause of an exception, or None if none can. `takes` is
    the end of the message."""
    told = f"{type(cause).__name__}: {' '.join(str(cause).split()).rstrip('.')}"
    for key, value in _arguments(content).items():
        if _names(str(cause), key, value):
            reason = f"{content['_target_']} rejects this value at {place_of(cause)}: {told}{takes}"
            return _refusal(group, content, key, reason)
    keys = [] if isinstance(cause, _OF_CODE) else _set_by_user(group, content)
    if not keys:
        return None
    which = "this value" if len(keys) == 1 else "one of these values"
    reason = f"{content['_target_']} fails with {which} at {place_of(cause)}: {told}{takes}"
    return ConfigError(f"{reason}.").about(*[_setting(group, content, key) for key in keys])


def _takes(content: Mapping[str, Any], function: Callable[..., Any] | None, given: int) -> str:
    """Returns the part of a message that says which arguments the function takes, or an empty string if that is
    unknown."""
    signature = None if function is None else _signature(function)
    if signature is None:
        return ""
    return f"; {_taken(content, signature, tuple(signature.parameters)[:given])}"


def _set_by_user(group: str, content: Mapping[str, Any]) -> list[str]:
    """Returns the arguments set on the command line or, if there are none, those set in files of other groups."""
    from parallax_runner.config.running_job import origins_of_running_job

    origins = origins_of_running_job()
    if origins is None:
        return []
    given = origins.given(group)
    typed = [key for key in _arguments(content) if f"{group}.{key}" in given]
    return typed or [key for key in _arguments(content) if origins.keys_set(f"{group}.{key}")]


def _names(message: str, key: str, value: Any) -> bool:
    """Returns whether a message contains both the name and the value. A message with only the name could be about
    something else."""
    is_plain = isinstance(value, int | float | str)
    return is_plain and _has_word(message, key) and (_has_word(message, str(value)) or _has_number(message, value))


def _has_word(message: str, word: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(word)}(?!\w|\.\w)", message) is not None


def _has_number(message: str, value: float | str) -> bool:
    """Returns whether a message contains the value in another notation, such as 1.000000 for 1."""
    numbers = re.findall(r"(?<![\w.])[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?(?![\w])", message)
    return not isinstance(value, str | bool) and any(float(number) == value for number in numbers)


def _arguments(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments for the function: the group without Hydra's own keys, which begin with an underscore."""
    return {key: value for key, value in content.items() if not key.startswith("_")}


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return None


def _takes_any(signature: inspect.Signature) -> bool:
    return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in signature.parameters.values())


def _taken(content: Mapping[str, Any], signature: inspect.Signature, given: Collection[str]) -> str:
    """Returns text such as «models.simple.build takes rate=0.1 in addition to features, optimizer»."""
    others = [
        name if one.default is inspect.Parameter.empty else f"{name}={one.default!r}"
        for name, one in signature.parameters.items()
        if name not in given
    ]
    beside = f" in addition to {', '.join(given)}" if given else ""
    return f"{content['_target_']} takes {', '.join(others) or 'no arguments'}{beside}"


def _setting(group: str, content: Mapping[str, Any], key: str) -> Setting:
    """Returns an argument of a group with its origin."""
    from parallax_runner.config.explain import setting_with_origin

    return setting_with_origin(f"{group}.{key}", _origins(), value=content[key])


def _origins() -> Origins:
    from parallax_runner.config.origins import Origins
    from parallax_runner.config.running_job import origins_of_running_job

    return origins_of_running_job() or Origins([], [])


def _refusal(
    group: str, content: Mapping[str, Any], key: str, reason: str, nearest_of: Collection[str] = ()
) -> ConfigError:
    # Imported here because workers do not need these modules: the driver has already reported any mistake.
    from parallax_runner.config.explain import refusal, written
    from parallax_runner.config.suggestions import nearest

    hint = nearest(key, nearest_of)
    hint = None if hint is None else f"{group}.{hint}={written(content[key])}"
    return refusal(f"{group}.{key}", _origins(), reason, value=content[key], hint=hint)
