"""Whether the function that `model`, `data` or `optimizer` names takes the arguments that the group has."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from parallax_runner.errors import CaptureError, ConfigError, ParallaxError
from parallax_runner.process.user_code import place_of

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def check_callable(group: str, content: Mapping[str, Any], function: Any) -> None:
    """Raises ConfigError where `_target_` names a module or a value, which cannot be called."""
    if not callable(function):
        kind = type(function).__name__
        raise _refusal(group, content, "_target_", f"expected a function or class, and this is of type {kind}")


def check_names(
    group: str, content: Mapping[str, Any], function: Callable[..., Any], *, given: Collection[str] = ()
) -> None:
    """Raises ConfigError where the group has an argument that its function does not take.

    `given` are names of parameters that the caller gives by their place. What takes any keyword is let through.
    """
    signature = _signature(function)
    if signature is None or _takes_any(signature):
        return
    named = [name for name, one in signature.parameters.items() if one.kind in _BY_NAME and name not in given]
    for key in _arguments(content):
        if key not in named:
            reason = f"no such argument, {_taken(content, signature, given)}"
            raise _refusal(group, content, key, reason, nearest_of=named)


def check_call(group: str, content: Mapping[str, Any], function: Callable[..., Any], *, given: int = 0) -> None:
    """Raises ConfigError where the function cannot be called with `given` arguments by place and those of the group."""
    signature = _signature(function)
    if signature is None or "_args_" in content:
        return
    names = tuple(signature.parameters)[:given]
    check_names(group, content, function, given=names)
    try:
        signature.bind(*[None] * given, **_arguments(content))
    except TypeError as error:
        raise _refusal(group, content, "_target_", f"{error}; {_taken(content, signature, names)}") from error


@contextmanager
def blamed(group: str, content: Mapping[str, Any]) -> Iterator[None]:
    """Within the block, an error whose message has the name and the value of an argument is told of this argument."""
    try:
        yield
    except Exception as error:
        cause = error.__cause__ if isinstance(error, CaptureError) else error
        if not isinstance(cause, Exception) or isinstance(cause, ParallaxError):
            raise
        for key, value in _arguments(content).items():
            if _names(str(cause), key, value):
                told = " ".join(str(cause).split()).rstrip(".")
                reason = f"{content['_target_']} fails with it at {place_of(cause)}: {type(cause).__name__}: {told}"
                raise _refusal(group, content, key, reason) from error
        raise


def _names(message: str, key: str, value: Any) -> bool:
    """A name alone may be that of something else, so the value must stand there too."""
    is_plain = isinstance(value, int | float | str)
    found = [re.search(rf"(?<![\w.-]){re.escape(word)}(?!\w|\.\w)", message) for word in (key, str(value))]
    return is_plain and all(found)


def _arguments(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a function is called with: Hydra's own words for it begin with an underscore."""
    return {key: value for key, value in content.items() if not key.startswith("_")}


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # of some that are written in C nobody knows
        return None


def _takes_any(signature: inspect.Signature) -> bool:
    return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in signature.parameters.values())


def _taken(content: Mapping[str, Any], signature: inspect.Signature, given: Collection[str]) -> str:
    """«models.simple.build takes rate=0.1, beside features, optimizer»."""
    others = [
        name if one.default is inspect.Parameter.empty else f"{name}={one.default!r}"
        for name, one in signature.parameters.items()
        if name not in given
    ]
    beside = f", beside {', '.join(given)}" if given else ""
    return f"{content['_target_']} takes {', '.join(others) or 'no argument'}{beside}"


def _refusal(
    group: str, content: Mapping[str, Any], key: str, reason: str, nearest_of: Collection[str] = ()
) -> ConfigError:
    # Only here: workers, which find no mistake that the driver has not found, need none of it.
    from parallax_runner.config.explain import nearest, refusal, written
    from parallax_runner.config.origins import Origins
    from parallax_runner.config.running_job import origins_of_running_job

    hint = nearest(key, nearest_of)
    origins = origins_of_running_job() or Origins([], [])
    hint = None if hint is None else f"{group}.{hint}={written(content[key])}"
    return refusal(f"{group}.{key}", origins, reason, value=content[key], hint=hint)
