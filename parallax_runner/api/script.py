"""A script as the source of a run's graph: how the driver sees it, and how a worker runs it again."""

from __future__ import annotations

import runpy
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from omegaconf import DictConfig

from parallax_runner.api.printed import Printed
from parallax_runner.config import frozen
from parallax_runner.errors import ConfigError, LaunchError, ScriptError
from parallax_runner.launch.client import ControlClient

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

    from parallax_runner.api.session import Session
    from parallax_runner.data.dataset import Dataset
    from parallax_runner.graph.generators import Borrowed
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph


def start_it_plainly(*_: Any, **__: Any) -> NoReturn:
    """What `model=script` names; only parallel_run can bring the graph. Raises ConfigError."""
    raise ConfigError(
        "model=script: a script brings its own graph; start it plainly, as in `python train.py`, and it calls "
        "parallel_run by itself"
    )


@dataclass(frozen=True)
class NoData:
    """The data set of a script, which reads its data by itself."""

    features: dict[str, Any] = field(default_factory=dict)
    words_per_example: int | None = None
    train_size: int = 1
    validation_size: int = 0


@dataclass(frozen=True)
class ScriptSource:
    """The graph that a script has built."""

    graph: tf.Graph

    def load_dataset(self, config: DictConfig) -> Dataset:
        """None of ours."""
        if config.action in ("verify", "sync"):
            raise ConfigError(f"action={config.action}: not for a script, whose data only the script reads")
        return NoData()  # type: ignore[return-value]

    def build_graph(self, config: DictConfig, dataset: Dataset) -> SingleDeviceGraph:
        """The captured graph."""
        from parallax_runner.graph.script_graph import capture_script

        return capture_script(self.graph)


@dataclass
class Worker:
    """This process, where it is a worker that runs a script; `generators` while the script runs, `session` once
    parallel_run has made one."""

    run_dir: Path
    rank: int
    client: ControlClient
    config: DictConfig
    generators: Borrowed | None = None
    session: Session | None = None


_workers: list[Worker] = []


def this_worker() -> Worker | None:
    """The worker that this process is; None in the process that a person has started."""
    return _workers[0] if _workers else None


def started_as() -> list[str]:
    """The overrides that say how this script was started. Raises LaunchError where there is none to start again."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if file is None:
        raise LaunchError(
            "parallel_run starts its script again in each worker, and this is none: put it into a file, and start that "
            "as in `python train.py`"
        )
    from parallax_runner.api.overrides import value_of

    module = None if spec is None else spec.name.removesuffix(".__main__")
    return [
        f"model.path={value_of(str(Path(file).resolve()))}",
        f"model.module={value_of(module)}",
        f"model.arguments={value_of(sys.argv[1:])}",
    ]


def run_script(run_dir: Path, rank: int, client: ControlClient) -> None:
    """Runs the script as its worker `rank`, to its end, and tells the driver how it went."""
    config = frozen.load(run_dir)
    worker = Worker(run_dir, rank, client, config)
    _workers.append(worker)
    if config.redirect_path is None:
        sys.stdout = Printed(sys.stdout, "stdout", client)
        sys.stderr = Printed(sys.stderr, "stderr", client)
    try:
        from parallax_runner.graph.generators import FILE_NAME, Borrowed

        worker.generators = Borrowed(Path(config.model.first_process) / FILE_NAME)
        try:
            _run(config)
        except SystemExit as end:
            _check(end)
        if worker.session is None:
            raise ScriptError("the script ended and had not called parallel_run", exit_status=1)
        worker.session.close()
        _leave(worker.session, client)
    except BaseException:
        if worker.session is not None:
            worker.session.give_up()
        raise
    finally:
        _print_plainly()
    client.done(**worker.session.training.outcome())


def _print_plainly() -> None:
    """What is printed from now on, a traceback included, is for the log alone."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, Printed):
            setattr(sys, name, stream.finish())


def _leave(session: Session, client: ControlClient) -> None:
    """Waits for the other workers' scripts: the driver sees where one of them waits for a step that never comes."""
    if session.plan.sync and session.plan.workers > 1:
        client.doing = "waiting for the other workers' scripts"
        client.leave(session.training.step)


def _run(config: DictConfig) -> None:
    sys.argv[:] = [config.model.path, *config.model.arguments]
    if config.model.module is not None:
        sys.path[0] = ""
        runpy.run_module(config.model.module, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(config.model.path).parent)
        runpy.run_path(config.model.path, run_name="__main__")


def _check(end: SystemExit) -> None:
    """Raises ScriptError where a script has not ended well."""
    if end.code is None or end.code == 0:
        return
    if isinstance(end.code, int):
        raise ScriptError(f"the script ended with exit status {end.code}", exit_status=end.code) from end
    raise ScriptError(str(end.code), exit_status=1) from end
