"""Turns the errors of the API server's client into one sentence each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from parallax_runner.errors import LaunchError, Setting
from parallax_runner.launch.launchers.kubernetes.credentials import Access

NOT_FOUND, CONFLICT = 404, 409
_UNAUTHORIZED, _FORBIDDEN, _INVALID = 401, 403, (400, 422)
_TOO_MANY_REQUESTS, _LEAST_OF_SERVER = 429, 500


class ServerLostError(LaunchError):
    """The API server does not answer, or cannot do its work now. The same request may succeed later."""


@contextmanager
def one_sentence(access: Access, doing: str) -> Iterator[None]:
    """Raises LaunchError in place of the errors of a request. `doing` tells what the request does, such as «create the
    Job a»."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        raise _refusal(access, doing, error).about(
            Setting("cluster", "kubernetes"), Setting("cluster.namespace", access.namespace)
        ) from error
    except HTTPError as error:
        reason = getattr(error, "reason", None) or error
        raise ServerLostError(f"the API server at {access.server} does not answer: {reason}").about(
            Setting("cluster", "kubernetes")
        ) from error


def is_forbidden(error: LaunchError) -> bool:
    """Returns whether the server has refused a request because these credentials may not make it."""
    return error.__cause__ is not None and getattr(error.__cause__, "status", None) == _FORBIDDEN


def status_of(error: Exception) -> int | None:
    """Returns the HTTP status of an error of the client, or None for any other error."""
    status = getattr(error, "status", None)
    return status if isinstance(status, int) else None


def _refusal(access: Access, doing: str, error: Any) -> LaunchError:
    told = _message_in(error)
    if error.status == _UNAUTHORIZED:
        return LaunchError(
            f"the API server at {access.server} does not accept the credentials of the current context; log in again"
        )
    if error.status == _FORBIDDEN:
        return LaunchError(f"these credentials may not {doing}: {told}")
    if error.status in _INVALID:
        return LaunchError(f"the API server refuses to {doing}: {told}")
    is_temporary = error.status == _TOO_MANY_REQUESTS or error.status >= _LEAST_OF_SERVER
    kind = ServerLostError if is_temporary else LaunchError
    return kind(f"the API server cannot {doing}: {error.status} {told}")


def _message_in(error: Any) -> str:
    """Returns the message of the server's answer, in one line."""
    try:
        told = json.loads(error.body)["message"]
    except (TypeError, ValueError, KeyError):
        told = error.reason or error.body
    return " ".join(str(told).split())
