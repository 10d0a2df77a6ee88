"""An HTTP server that answers as a Kubernetes API server does, as far as this project asks it."""

from __future__ import annotations

import datetime
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import yaml

TOKEN = "a-token"
BEGIN = datetime.datetime(2026, 1, 1)
PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)/namespaces/(?P<namespace>[^/]+)"
    r"(?:/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?P<log>/log)?)?)?"
)
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
Key = tuple[str, str, str]  # plural, namespace, name
REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "AlreadyExists"}


@dataclass
class Log:
    """The log of a pod: lines, each with its time, and whether more may follow."""

    lines: list[str] = field(default_factory=list)
    is_open: bool = True


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class ApiServer:
    """The objects of a cluster, and the server that gives access to them. Use it as a context manager.

    `refuse` may raise Refused for a verb, a plural and an object, as admission controllers and RBAC do.
    `may_not_create` are the plurals that RBAC would refuse.
    """

    def __init__(self, *, version: str = "34", has_jobsets: bool = False) -> None:
        self.version, self.has_jobsets = version, has_jobsets
        self.objects: dict[Key, dict[str, Any]] = {}
        self.logs: dict[str, Log] = {}
        self.namespaces = {"default"}
        self.changed = threading.Condition()
        self.refuse: Callable[[str, str, dict[str, Any]], None] = lambda verb, plural, content: None
        self.may_not_create: set[str] = set()
        self.requests: list[str] = []
        self._moments = itertools.count()
        self._creations = itertools.count()
        self._numbers = itertools.count(1)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def write_kubeconfig(self, path: Path, *, token: str = TOKEN, namespace: str | None = None) -> Path:
        context = {"cluster": "c", "user": "u", **({} if namespace is None else {"namespace": namespace})}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": self.address}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": context}],
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def put(self, plural: str, content: dict[str, Any], namespace: str = "default") -> dict[str, Any]:
        """Creates or replaces an object, as a controller does."""
        with self.changed:
            metadata = content["metadata"]
            metadata.setdefault("namespace", namespace)
            metadata.setdefault("uid", f"uid-{next(self._numbers)}")
            key = (plural, namespace, metadata["name"])
            earlier = self.objects.get(key, content)["metadata"]
            metadata["creationTimestamp"] = earlier.get("creationTimestamp") or self._next_second()
            self.objects[key] = content
            self.changed.notify_all()
        return content

    def get(self, plural: str, name: str, namespace: str = "default") -> dict[str, Any] | None:
        return self.objects.get((plural, namespace, name))

    def of(self, plural: str) -> list[dict[str, Any]]:
        return [content for (kind, _, _), content in list(self.objects.items()) if kind == plural]

    def remove(self, plural: str, name: str, namespace: str = "default") -> None:
        """Removes an object and what it owns, as the garbage collector does."""
        with self.changed:
            gone = self.objects.pop((plural, namespace, name), None)
            if gone is None:
                return
            uid = gone["metadata"]["uid"]
            for (kind, place, other), content in list(self.objects.items()):
                owners = content["metadata"].get("ownerReferences", [])
                if any(owner["uid"] == uid for owner in owners):
                    self.remove(kind, other, place)
            self.changed.notify_all()

    def log(self, pod: str, *lines: str, is_open: bool = True) -> None:
        """Adds lines to a pod's log."""
        with self.changed:
            log = self.logs.setdefault(pod, Log())
            log.lines += [f"{self._moment()} {line}" for line in lines]
            log.is_open = is_open
            self.changed.notify_all()

    def _next_second(self) -> str:
        """Returns the next time in whole seconds, as the time of a creation is."""
        return (BEGIN + datetime.timedelta(seconds=next(self._creations))).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _moment(self) -> str:
        """Returns the next time in the form of Go, without zeros at the end of the fraction."""
        number = next(self._moments)
        fraction = f"{number % 1000:03}".rstrip("0")
        return f"2026-01-01T{number // 60000:02}:{number // 1000 % 60:02}:00{'.' if fraction else ''}{fraction}Z"

    def lines_of(self, pod: str, *, is_followed: bool) -> Iterator[str]:
        number = 0
        while True:
            with self.changed:
                log = self.logs.get(pod, Log(is_open=False))
                while is_followed and log.is_open and len(log.lines) <= number:
                    self.changed.wait(1.0)
                new = log.lines[number:]
                number += len(new)
                is_over = not new and not (is_followed and log.is_open)
            yield from new
            if is_over:
                return

    def answer(self, verb: str, path: str, token: str | None, content: dict[str, Any]) -> dict[str, Any]:
        """Returns the answer to a request other than that for a log. Raises Refused."""
        if token != f"Bearer {TOKEN}":
            raise Refused(401, "Unauthorized")
        split = urlsplit(path)
        if split.path == "/version/":
            return {"major": "1", "minor": self.version, "gitVersion": f"v1.{self.version}.0"} | dict.fromkeys(
                ("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"), ""
            )
        if split.path == "/apis/":
            return self._groups()
        if split.path == REVIEWS:
            resource = content["spec"]["resourceAttributes"]["resource"]
            return {**content, "status": {"allowed": resource not in self.may_not_create}}
        found = PATH.fullmatch(split.path)
        if found is None or (found["group"] == "jobset.x-k8s.io" and not self.has_jobsets):
            raise Refused(404, "the server could not find the requested resource")
        options = {name: values[0] for name, values in parse_qs(split.query).items()}
        plural = found["plural"] or "namespaces"
        self.refuse(verb, plural, content)
        if plural == "namespaces":
            return self._namespace(found["namespace"])
        return self._about(verb, (plural, found["namespace"], found["name"] or ""), content, options)

    def _about(self, verb: str, key: Key, content: dict[str, Any], options: dict[str, str]) -> dict[str, Any]:
        plural, namespace, name = key
        with self.changed:
            if verb == "POST":
                return self._create(plural, namespace, content, is_trial=options.get("dryRun") == "All")
            if not name:
                found = self._listed(plural, namespace, options.get("labelSelector", ""))
                return _with_fields(found, options.get("fieldSelector", ""))
            if key not in self.objects:
                raise Refused(404, f'{plural} "{name}" not found')
            found = self.objects[key]
            if verb == "DELETE":
                self.remove(plural, name, namespace)
            return found

    def _create(self, plural: str, namespace: str, content: dict[str, Any], *, is_trial: bool) -> dict[str, Any]:
        name = content["metadata"]["name"]
        if namespace not in self.namespaces:
            raise Refused(404, f'namespaces "{namespace}" not found')
        if (plural, namespace, name) in self.objects:
            raise Refused(409, f'{plural} "{name}" already exists')
        return content if is_trial else self.put(plural, content, namespace)

    def _listed(self, plural: str, namespace: str, selector: str) -> dict[str, Any]:
        wanted = [tuple(part.split("=")) for part in selector.split(",") if part]
        # A real server lists objects by their names, too.
        found = [
            content
            for (kind, place, _), content in sorted(self.objects.items(), key=lambda one: one[0])
            if (kind, place) == (plural, namespace)
            and all(content["metadata"].get("labels", {}).get(label) == value for label, value in wanted)
        ]
        return {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": found}

    def _namespace(self, name: str) -> dict[str, Any]:
        if name not in self.namespaces:
            raise Refused(404, f'namespaces "{name}" not found')
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}

    def _groups(self) -> dict[str, Any]:
        served = {"batch": "v1", **({"jobset.x-k8s.io": "v1alpha2"} if self.has_jobsets else {})}
        groups = [
            {"name": name, "versions": [{"groupVersion": f"{name}/{version}", "version": version}]}
            for name, version in served.items()
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def _with_fields(listed: dict[str, Any], selector: str) -> dict[str, Any]:
    """The objects of a list whose fields of the first level have the values of a selector."""
    wanted = [part.split("=") for part in selector.split(",") if part]
    found = [one for one in listed["items"] if all(one.get(field) == value for field, value in wanted)]
    return {**listed, "items": found}


def _handler(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            server.requests.append(f"{self.command} {self.path}")

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                content = json.loads(body) if body else {}
                if "/log" in self.path:
                    self._answer_log()
                    return
                answer = server.answer(self.command, self.path, self.headers.get("Authorization"), content)
                self._send(201 if self.command == "POST" else 200, answer)
            except Refused as error:
                told = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": error.message}
                self._send(error.status, {**told, "reason": REASONS.get(error.status, ""), "code": error.status})

        do_GET = do_POST = do_DELETE = do_PATCH = _answer

        def _send(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _answer_log(self) -> None:
            split = urlsplit(self.path)
            found = PATH.fullmatch(split.path)
            assert found is not None
            server.answer("GET", split.path.removesuffix("/log"), self.headers.get("Authorization"), {})
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            is_followed = parse_qs(split.query).get("follow") == ["True"]
            for line in server.lines_of(found["name"], is_followed=is_followed):
                data = f"{line}\n".encode()
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")

    return Handler


def wait_for(condition: Callable[[], Any], secs: float = 30.0) -> Any:
    """Waits until a condition has a true value, and returns the value."""
    deadline = time.monotonic() + secs
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found
