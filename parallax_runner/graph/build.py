"""The first stages, which the driver and the workers share: loading the data and building the model's graph."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from parallax_runner.config.frozen import plain
from parallax_runner.config.location import models_dir
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.common_features import validation_features_of
from parallax_runner.data.dataset import Dataset
from parallax_runner.data.indexed import is_source, of_source
from parallax_runner.data.shares import is_uneven_run
from parallax_runner.errors import CaptureError, ConfigError, DataError, Setting
from parallax_runner.files.in_place import open_in_place
from parallax_runner.graph.arguments import blamed, check_call, check_callable, check_names
from parallax_runner.graph.data_arguments import data_arguments
from parallax_runner.graph.table_argument import roles_of, table_argument
from parallax_runner.process.stage_times import stage
from parallax_runner.process.tensorflow_import import import_tensorflow
from parallax_runner.process.user_code import must_not_exit

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph
    from parallax_runner.graph.traced.untouched import Untouched

# Keys of the group `data` that are not arguments of its function.
OWN_DATA_KEYS = ("batch_size", "global_batch", "resume")
MEMBERS = ("features", "words_per_example", "train_size", "validation_size", "train_batch")
ACCUMULATE = "train.accumulate_steps"
MODELS = "models"  # the package that conf/model/ names


@stage("data")
def load_dataset(config: RunConfig) -> Dataset:
    """Loads the data that `config.data` describes."""
    from hydra.utils import instantiate

    function = _find("data", config.data)
    arguments = {key: plain(value) for key, value in config.data.items() if key not in OWN_DATA_KEYS}
    of_run = data_arguments(function, config)
    check_call("data", arguments, function, by_name=of_run)
    target = Setting("data._target_", config.data["_target_"])
    try:
        with must_not_exit("", DataError, about=[target]), blamed("data", arguments, function):
            return _as_dataset(_unwrapped(lambda: instantiate(arguments | of_run)), config)
    except MemoryError as error:
        raise DataError(f"the data does not fit in memory: {error}").about(target) from error


def _as_dataset(made: Any, config: RunConfig) -> Dataset:
    """Returns the result of a data function as a `Dataset`. The result can be a `Dataset`, a `tf.data.Dataset`, a
    source of examples, or a pair of `tf.data.Dataset`s or of sources for training and validation."""
    tensorflow, target = sys.modules.get("tensorflow"), Setting.of("data._target_", config.data["_target_"])
    train, validation = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if tensorflow is None or not isinstance(train, tensorflow.data.Dataset):
        missing = _missing_members(made)
        if not missing:
            dataset: Dataset = made
            return dataset
        if is_source(train) and (validation is None or is_source(validation)):
            try:
                return of_source(train, validation, seed=config.data.get("seed", config.train.seed))
            except DataError as error:
                raise error.about(target) from error
        raise ConfigError(
            f"the function returned an object of type {type(made).__name__} without {', '.join(missing)}; expected a "
            "tf.data.Dataset, an object with __len__ and __getitem__, or a dataset as described in docs/data.md"
        ).about(target)
    from parallax_runner.graph.tf_data.tf_dataset import TfDataset

    return TfDataset.of(train, validation, exact=config.data.get("resume", "exact") != "approximate")


def _missing_members(made: Any) -> list[str]:
    """Returns the members of `Dataset` that an object lacks."""
    needed = (*MEMBERS, *(["validation_batch"] if getattr(made, "validation_size", 0) else []))
    return [name for name in needed if not hasattr(made, name)]


def build_graph(config: RunConfig, dataset: Dataset) -> SingleDeviceGraph:
    """Builds the graph of one replica with the model's function. The graph is the same in every process."""
    single = _graph_of_step(config, dataset)
    if config.train.mixed_precision == "off" or single.keras_model is not None:  # the driver refuses a Keras model
        return single
    from parallax_runner.graph.mixed_precision import with_short_products

    return with_short_products(single)


def _graph_of_step(config: RunConfig, dataset: Dataset) -> SingleDeviceGraph:
    """Returns the graph of a step, whose batch can have any size or is computed in one or several passes."""
    if is_uneven_run(config, dataset):
        from parallax_runner.graph.uneven_steps import with_share

        _refuse_accumulation(config)
        return with_share(_build(config, dataset, None))
    batch_size = config.data["batch_size"]
    whole = _build(config, dataset, batch_size)
    return whole if config.train.accumulate_steps == 1 else _accumulated(config, dataset, whole)


def _refuse_accumulation(config: RunConfig) -> None:
    """Raises ConfigError if a step is divided into passes, because its batch can have any size."""
    if config.train.accumulate_steps > 1:
        raise ConfigError(
            "the last batch of the data is smaller than the others, and only batches of one size can be divided."
        ).about(
            Setting.of(ACCUMULATE, config.train.accumulate_steps),
            remedy="Omit it (drop_remainder=True in Dataset.batch), or omit this key",
        )


def _accumulated(config: RunConfig, dataset: Dataset, whole: SingleDeviceGraph) -> SingleDeviceGraph:
    """Returns the step that computes its gradients in several passes over parts of its batch."""
    from parallax_runner.graph.parts.accumulated import accumulated

    parts, batch_size = config.train.accumulate_steps, config.data["batch_size"]
    setting = Setting.of(ACCUMULATE, parts)
    if whole.keras_model is not None:
        raise ConfigError("a compiled Keras model accumulates gradients in its optimizer").about(
            setting, remedy=f"remove this setting, and give the optimizer gradient_accumulation_steps={parts}"
        )
    if batch_size % parts:
        raise ConfigError(f"data.batch_size={batch_size} cannot be divided into {parts} equal parts.").about(
            setting, remedy="Set a batch size that is a multiple of this number"
        )
    try:
        return accumulated(whole, _build(config, dataset, batch_size // parts), parts)
    except (CaptureError, ConfigError) as error:
        raise CaptureError(f"a pass over {batch_size // parts} examples: {error}").about(setting) from error


def build_serving_graph(config: RunConfig, dataset: Dataset) -> SingleDeviceGraph:
    """Builds the same graph as `build_graph`, but for batches of any size, if the model supports that."""
    return _build(config, dataset, None)


class Source(Protocol):
    """Loads a run's data and builds its graph."""

    def load_dataset(self, config: RunConfig) -> Dataset:
        """Loads the data."""
        ...

    def build_graph(self, config: RunConfig, dataset: Dataset) -> SingleDeviceGraph:
        """Builds the single-device graph. The graph is the same in every process."""
        ...

    def build_serving_graph(self, config: RunConfig, dataset: Dataset) -> SingleDeviceGraph:
        """Builds the same graph as `build_graph`, but for batches of any size, if the model supports that."""
        ...

    def untouched(self, config: RunConfig, dataset: Dataset) -> AbstractContextManager[Untouched] | None:
        """Returns a context manager that provides the model's own training step, or None if the user builds the graph
        and there is no such step."""
        ...


class _Model:
    """The default source: the model's function and the data function that the configuration names."""

    load_dataset = staticmethod(load_dataset)
    build_graph = staticmethod(build_graph)
    build_serving_graph = staticmethod(build_serving_graph)

    def untouched(self, config: RunConfig, dataset: Dataset) -> AbstractContextManager[Untouched] | None:
        """Calls the model's function again. Returns None for a function that takes features."""
        from parallax_runner.graph.traced.untouched import untouched_step

        batch_size = None if is_uneven_run(config, dataset) else config.data["batch_size"]
        step = _step_in(config, dataset, batch_size)
        return None if step is None else untouched_step(step.make, step.specs, seed=step.seed, options=step.options)


MODEL: Source = _Model()


def _build(config: RunConfig, dataset: Dataset, batch_size: int | None) -> SingleDeviceGraph:
    if "tensorflow" not in sys.modules:
        with _native_output_to(Path(config.run_dir) / "logs" / "driver.log"):
            import_tensorflow()
    from parallax_runner.graph.capture import capture
    from parallax_runner.graph.update.optimizer import updating_optimizer

    step = _step_in(config, dataset, batch_size)
    function = _find("model", config.model)
    if step is not None:
        from parallax_runner.graph.traced.capture_step import capture_step

        with stage("graph"), blamed("model", step.arguments, function):
            return capture_step(
                step.make,
                step.specs,
                seed=step.seed,
                options=step.options,
                validation_features=step.validation_specs,
            )
    _refuse_all_but_dense(config, dataset)
    shapes = {name: ((batch_size, *feature.shape), feature.dtype) for name, feature in dataset.features.items()}
    table = table_argument(function, config.model, dataset)
    check_call("model", config.model, function, given=2, by_name=table)
    optimizer_class = _find("optimizer", config.optimizer)
    check_call("optimizer", config.optimizer, optimizer_class)

    def build(features: dict[str, Any]) -> Any:
        with blamed("optimizer", config.optimizer, optimizer_class):
            optimizer = _unwrapped(lambda: updating_optimizer(_instantiated, plain(config.optimizer), config.update))
        return _unwrapped(lambda: _instantiated(plain(config.model), features, optimizer, **table))

    with stage("graph"), blamed("model", config.model, function, given=2):
        return capture(build, shapes, seed=config.train.seed)


@dataclass(frozen=True)
class _Step:
    """A model's function that returns a Keras model or a training step. `make` calls it with the `arguments` of its
    configuration group."""

    make: Callable[[], Any]
    arguments: Mapping[str, Any]
    specs: Mapping[str, Any]
    validation_specs: Mapping[str, Any]
    seed: int
    options: Mapping[str, Any]


def _step_in(config: RunConfig, dataset: Dataset, batch_size: int | None) -> _Step | None:
    """Returns the model's function, or None if the function takes features."""
    from parallax_runner.graph.components import specs_of
    from parallax_runner.graph.traced.kinds import OWN_KEYS, ROLES, makes_a_step

    _reach_models()
    function = _find("model", config.model)
    arguments = {key: value for key, value in plain(config.model).items() if key not in OWN_KEYS}
    table = table_argument(function, arguments, dataset)
    check_names("model", arguments, function, given=table)
    if not makes_a_step(function, {key: value for key, value in arguments.items() if not key.startswith("_")} | table):
        return None
    options = {key: plain(config.model[key]) for key in OWN_KEYS if key in config.model}
    return _Step(
        make=lambda: _unwrapped(lambda: _instantiated(arguments, **table)),
        arguments=arguments,
        specs=specs_of(dataset.features, batch_size),
        validation_specs=specs_of(validation_features_of(dataset), batch_size),
        seed=config.train.seed,
        options=options | {ROLES: roles_of(dataset)},
    )


def _refuse_all_but_dense(config: RunConfig, dataset: Dataset) -> None:
    """Raises ConfigError for a feature that is not dense, because a TensorFlow 1 graph has one placeholder per
    feature."""
    for name, feature in dataset.features.items():
        if feature.kind != "dense":
            raise ConfigError(
                f"this function takes features, which must be dense, but «{name}» is {feature.kind}."
            ).about(
                Setting("model._target_", config.model["_target_"]),
                remedy="Make the feature dense in the data, or name a function that takes no features and returns a "
                "Keras model or a training step",
            )


def _reach_models() -> None:
    """Makes the project's models importable as `models`.

    If the folder where a run was started has its own package `models`, the folder of the project's models is appended
    to that package's path, so the modules of the package take precedence.
    """
    own = models_dir()
    # If this import fails, the later lookup of the model reports the error.
    with suppress(Exception), must_not_exit(MODELS, ConfigError):
        if importlib.util.find_spec(MODELS) is None:  # a wheel contains the models inside parallax_runner
            _import_as(MODELS, own)
        models = importlib.import_module(MODELS)
        path = models.__dict__.setdefault("__path__", [])
        if str(own) not in path:
            path.append(str(own))


def _import_as(name: str, folder: Path) -> None:
    """Imports the package in `folder` as `name`."""
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def _find(group: str, content: Mapping[str, Any]) -> Any:
    """Returns the function or class that the `_target_` of a group names. Raises ConfigError if it cannot be imported
    or called."""
    from hydra._internal.utils import _locate

    target = content["_target_"]
    try:
        with must_not_exit("cannot be imported", ConfigError, about=[Setting(f"{group}._target_", target)]):
            found = _locate(target)
    except (ImportError, ValueError) as error:
        cause = error.__cause__ or error
        reason = " ".join(str(cause).split()) or type(cause).__name__
        raise ConfigError(f"cannot be imported: {type(cause).__name__}: {reason}").about(
            Setting.of(f"{group}._target_", target)
        ) from error
    check_callable(group, content, found)
    return found


@contextmanager
def _native_output_to(path: Path) -> Iterator[None]:
    """Redirects the output of TensorFlow's C++ code to a log file, because importing TensorFlow would clutter the
    terminal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    target = open_in_place(path, os.O_WRONLY | os.O_APPEND)
    os.dup2(target, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)


def _instantiated(content: Mapping[str, Any], *given: Any, **by_name: Any) -> Any:
    """Calls the function that a group names. Hydra would convert what is passed by name to configuration."""
    from hydra.utils import instantiate

    if not by_name:
        return instantiate(content, *given)
    return instantiate({**content, "_partial_": True}, *given)(**by_name)


def _unwrapped(call: Callable[[], Any]) -> Any:
    """Returns the result of `call`. If `call` fails, raises the original error instead of Hydra's wrapper."""
    from hydra.errors import InstantiationException

    try:
        return call()
    except InstantiationException as error:
        if error.__cause__ is not None:
            raise error.__cause__ from None
        raise
