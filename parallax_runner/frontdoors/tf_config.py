"""The environment variable `TF_CONFIG` of Distributed TensorFlow, which schedulers set for each process."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from parallax_runner.config.launched_processes import TF_CONFIG
from parallax_runner.errors import ConfigError
from parallax_runner.frontdoors.cluster_spec import meeting_point, number_of
from parallax_runner.frontdoors.door import FrontDoor, Task

# Jobs in rank order. TensorFlow 1 called the chief "master".
WORKERS = ("chief", "master", "worker")
SERVERS = "ps"
EXPECTED = (
    'expected {"cluster": {"worker": ["host:port", …], "ps": ["host:port", …]}, "task": {"type": "worker", "index": 0}}'
)
EVALUATOR = "evaluator"


class TfConfig(FrontDoor):
    """The front door for `TF_CONFIG`. The chief, or worker 0 if there is no chief, is rank 0. The other workers
    follow."""

    @classmethod
    def task(cls, role: str, asked: argparse.Namespace, environ: Mapping[str, str]) -> Task | None:
        """Returns the task that the variable describes, or None if it is not set."""
        return task_in(environ) if environ.get(TF_CONFIG) else None


def task_in(environ: Mapping[str, str]) -> Task:
    """Returns the task that the variable describes. Raises ConfigError if the variable is invalid."""
    try:
        content = json.loads(environ[TF_CONFIG])
    except ValueError as error:
        raise _refusal(f"not JSON ({error})") from error
    cluster = _cluster(content)
    kind, index = _task(content, cluster)
    ranks = [(job, number) for job in WORKERS for number in range(len(cluster.get(job, ())))]
    if not ranks:
        raise _refusal("its cluster has no worker")
    first = cluster[ranks[0][0]][0]
    return Task(
        "server" if kind == SERVERS else "worker",
        index if kind == SERVERS else ranks.index((kind, index)),
        meeting_point(first, f"{TF_CONFIG}: the cluster's {ranks[0][0]}"),
        workers=len(ranks),
        servers=len(cluster.get(SERVERS, ())),
    )


def _cluster(content: Any) -> Mapping[str, Sequence[str]]:
    cluster = content.get("cluster") if isinstance(content, dict) else None
    if not isinstance(cluster, dict) or not cluster:
        raise _refusal("it has no cluster")
    for job, hosts in cluster.items():
        _check_job(job, hosts)
    if sum(len(cluster.get(job, ())) for job in WORKERS[:2]) > 1:
        raise _refusal("the cluster has more than one chief")
    return cluster


def _check_job(job: Any, hosts: Any) -> None:
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise _refusal(f"the cluster's {job} is {hosts!r}, not a list of addresses")
    if job not in (*WORKERS, SERVERS, EVALUATOR):
        raise _refusal(f"the cluster has a job {job!r}; known jobs are {', '.join((*WORKERS, SERVERS))}")


def _task(content: Mapping[str, Any], cluster: Mapping[str, Sequence[str]]) -> tuple[str, int]:
    task = content.get("task")
    if not isinstance(task, dict) or "type" not in task:
        raise _refusal("it has no task type")
    kind, index = task["type"], number_of(task.get("index", 0))
    if kind == EVALUATOR:
        raise _refusal("a separate evaluator process is not supported: omit it, and set train.validate_steps")
    if kind not in (*WORKERS, SERVERS):
        raise _refusal(f"the task's type is {kind!r}; known types are {', '.join((*WORKERS, SERVERS))}")
    count = len(cluster.get(kind, ()))
    if index is None or index >= count:
        raise _refusal(
            f"the task's index is {task.get('index', 0)!r}, but the number of {kind} addresses in the cluster is "
            f"{count}"
        )
    return kind, index


def _refusal(wrong: str) -> ConfigError:
    return ConfigError(f"{TF_CONFIG}: {wrong}; {EXPECTED}")
