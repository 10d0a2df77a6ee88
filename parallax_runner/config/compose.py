"""Composes every job of a command line in this process, before Hydra runs the first job."""

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository, IConfigRepository
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import ResultDefault
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.core.utils import JobRuntime, setup_globals
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from parallax_runner.config import environment, explain, job_folder
from parallax_runner.config.location import conf_dir
from parallax_runner.config.main_file import check_main_file
from parallax_runner.config.master import Master, sweep_dir
from parallax_runner.config.origins import ConfigFile, Origins
from parallax_runner.config.structured import STRUCTURED
from parallax_runner.errors import COMMAND_LINE, ConfigError, Setting
from parallax_runner.files.text_encoding import undecoded

VERSION_BASE = "1.3"
CONFIG_NAME = "config"
SCHEMA = "run_config"
SEARCHPATH = "hydra.searchpath"
# Exceptions that Hydra raises for a wrong configuration. Some of them are plain Python exceptions.
COMPOSITION_ERRORS = (
    HydraException,
    OmegaConfBaseException,
    yaml.YAMLError,
    AssertionError,
    AttributeError,
    KeyError,  # hydra.job.env_copy names a variable that is not set
    TypeError,
    ValueError,
)


def register_schema() -> None:
    """Registers the schema with Hydra, and the resolver `job_folder`, which `conf/config.yaml` uses, with OmegaConf."""
    job_folder.register()
    store = ConfigStore.instance()
    if f"{SCHEMA}.yaml" not in store.repo:
        store.store(name=SCHEMA, node=STRUCTURED, provider="parallax_runner")


@dataclass(frozen=True)
class Job:
    """One job of a command line. `config` still contains Hydra's own node."""

    config: DictConfig
    origins: Origins
    title: str = ""


class _Repository(ConfigRepository):
    """Hydra's repository, whose copies share its sources. Hydra copies it before each composition, so that only the
    copy gets other sources. Copying the sources copies every registered configuration, which takes 15% of the time."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return copy.copy(self)


class _Loader(ConfigLoaderImpl):
    """Hydra's loader, which also keeps the defaults list of the last configuration. Building the list again would take
    40% of the composition time."""

    defaults: Sequence[ResultDefault] = ()

    def __init__(self, search_path: ConfigSearchPath) -> None:
        super().__init__(search_path)
        self.repository = _Repository(search_path)

    def _compose_config_from_defaults_list(self, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        self.defaults = defaults
        return super()._compose_config_from_defaults_list(defaults, repo)


@dataclass
class Composer:
    """Composes configurations like `hydra.main`, but raises errors with this project's own messages."""

    config_name: str = CONFIG_NAME
    config_path: str | None = None
    config_dir: str | None = None
    _loader: _Loader = field(init=False)
    _repository: CachingConfigRepository = field(init=False)  # includes the folders in hydra.searchpath

    def __post_init__(self) -> None:
        version.setbase(VERSION_BASE)
        setup_globals()
        register_schema()
        JobRuntime.instance().set("name", "parallax_runner")
        search_path = create_config_search_path(self.config_path or str(conf_dir()))
        if self.config_dir is not None:
            folder = os.path.abspath(self.config_dir)
            if not os.path.isdir(folder):
                raise ConfigError("there is no such folder").about(
                    Setting.of("--config-dir", self.config_dir, where=COMMAND_LINE)
                )
            search_path.prepend("command-line", f"file://{folder}", anchor=SearchPathQuery(provider="schema"))
        self._loader = _Loader(search_path)
        self._repository = CachingConfigRepository(self._loader.repository)
        if (self.config_name, self.config_path, self.config_dir) != (CONFIG_NAME, None, None):
            name = self.config_name.removesuffix(".yaml")
            check_main_file(self.config_name, self._path(name), self.config_dir)

    def job(self, lines: Sequence[str], title: str = "") -> Job:
        """Composes one job from its overrides."""
        overrides = self._parse(lines)
        self._follow_searchpath(overrides)
        self._check_groups(overrides)
        try:
            config = self._loader.load_configuration(self.config_name, list(lines), run_mode=RunMode.RUN)
        except COMPOSITION_ERRORS as error:
            raise self._explain(error, overrides) from error
        return Job(config, Origins(overrides, self._files(self._loader.defaults)), title)

    def command(self, lines: Sequence[str], *, multirun: bool) -> Job | Master:
        """Composes a command line: returns a plain job, or the `Master` from which the jobs of a sweep are composed."""
        overrides = self._parse(lines)
        sweeping = [override for override in overrides if override.is_sweep_override()]
        if not multirun and not sweeping:
            job = self.job(lines)
            if _mode(job.config, job.origins) != RunMode.MULTIRUN:
                return job
        for override in sweeping:
            _check_swept(override, overrides)
        self._follow_searchpath(overrides)
        self._check_groups(overrides)
        try:
            config = self._loader.load_configuration(
                self.config_name, list(lines), run_mode=RunMode.MULTIRUN, validate_sweep_overrides=False
            )
            folder = sweep_dir(config)
        except COMPOSITION_ERRORS as error:
            raise self._explain(error, overrides) from error
        if not multirun and _mode(config, Origins(overrides, [])) != RunMode.MULTIRUN:
            raise explain.needs_multirun(sweeping[0])
        return Master(config, tuple(overrides), folder)

    def first_value(self, line: str) -> str:
        """Returns an override with only the first of its swept values. An override without a sweep is returned
        unchanged."""
        (override,) = self._parse([line])
        if not override.is_sweep_override():
            return line
        interval = override.value()
        if isinstance(interval, IntervalSweep):
            return f"{override.get_key_element()}={interval.start}"
        if _names_no_value(override):
            raise explain.no_value(override)
        return f"{override.get_key_element()}={next(iter(override.sweep_string_iterator()))}"

    def jobs(self, lines: Sequence[str], *, multirun: bool) -> Iterator[Job]:
        """Composes every job of a command line, one at a time."""
        command = self.command(lines, multirun=multirun)
        yield from [command] if isinstance(command, Job) else self.jobs_of(command)

    def jobs_of(self, master: Master) -> Iterator[Job]:
        """Composes the jobs of a sweep, one at a time.

        If a sweeper other than Hydra's own chooses the values during the sweep, this method yields two jobs with
        only the overrides that all jobs share."""
        own_lines = [override.input_line for override in master.overrides if override.is_hydra_override()]
        for number, batch in enumerate(self._expand(master)):
            title = f"job {number} ({' '.join(batch)}): " if batch else ""
            job = self.job([*filter(None, own_lines), *master.more_lines, *batch], title)
            with open_dict(job.config):
                job.config.hydra.mode = RunMode.MULTIRUN
                job.config.hydra.job.id = str(number)
                job.config.hydra.job.num = number
            yield job

    def options(self, group: str, kind: ObjectType) -> list[str]:
        """Returns the choices of a group, or its subgroups."""
        return sorted(self._repository.get_group_options(group, kind))

    def text_of(self, config_path: str) -> str:
        """Returns the text of a configuration file, such as `comm/mpi`, or an empty string if there is no such file."""
        path = self._path(config_path)
        return "" if path is None else path.read_text(encoding="utf-8")

    def _expand(self, master: Master) -> list[list[str]]:
        """Returns the overrides of each job, expanded in the same way as by Hydra's own sweeper."""
        hydra = master.config.hydra
        parameters = [f"{key}={value}" for key, value in (hydra.sweeper.get("params") or {}).items()]
        # The values of interpolations differ between jobs, and an interpolation may need a value that exists only in a
        # job.
        typed: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)
        overrides = self._parse([*parameters, *typed])
        if not master.jobs_are_known:
            return 2 * [_lines(overrides, swept=False)]
        try:
            batches = BasicSweeper.split_arguments(overrides, None)[0]
        except COMPOSITION_ERRORS as error:
            raise explain.sweep(" ".join(_lines(overrides, swept=True)), error) from error
        if not batches:
            raise explain.no_value(next(one for one in overrides if _names_no_value(one)))
        return batches

    def _parse(self, lines: Sequence[str]) -> list[Override]:
        parser = OverridesParser.create(config_loader=self._loader)
        overrides = []
        for line in lines:
            try:
                if (reason := undecoded(line)) is not None:
                    raise explain.unreadable_value(line, reason)
                overrides += parser.parse_overrides([line])
            except RecursionError as error:
                raise explain.unreadable_value(line, "it is nested too deeply") from error
            except ValueError as error:  # an integer with more digits than Python can read
                raise explain.unreadable_value(line, str(error).partition(":")[0]) from error
            except (HydraException, OmegaConfBaseException) as error:
                raise explain.syntax(line, error) from error
            if not overrides[-1].key_or_group:
                raise explain.syntax(line, ValueError("no key before the equals sign"))
        return overrides

    def _follow_searchpath(self, overrides: Sequence[Override]) -> None:
        """Adds the folders in `hydra.searchpath=[...]` to the search path, as Hydra does."""
        self._repository = CachingConfigRepository(self._loader.repository)
        given = [override for override in overrides if override.get_key_element() == SEARCHPATH]
        if not given:
            return
        folders = _folders(given[0])
        search_path = copy.deepcopy(self._loader.config_search_path)
        for folder in folders:
            search_path.prepend(COMMAND_LINE, folder, anchor=SearchPathQuery(provider="schema"))
        self._repository.initialize_sources(search_path)
        for source in self._repository.get_sources():
            if source.provider == COMMAND_LINE and not source.available():
                raise ConfigError("there is no such folder").about(
                    Setting.of(SEARCHPATH, source.full_path(), where=COMMAND_LINE)
                )

    def _check_groups(self, overrides: Sequence[Override]) -> None:
        for override in overrides:
            group = override.key_or_group
            if override.is_delete():
                explain.check_removal(override)
                continue
            if override.is_sweep_override() or isinstance(override.value(), dict):
                continue
            if self._repository.group_exists(group):
                options = self.options(group, ObjectType.CONFIG)
                inner = [str(override.value())] if self._path(f"{group}/{override.value()}") is not None else []
                explain.check_choice(override, [*options, *inner])

    def _files(self, defaults: Sequence[ResultDefault]) -> list[ConfigFile]:
        files = []
        for default in defaults:
            path = self._path(default.config_path or "")
            if path is not None:
                files.append(ConfigFile(path, default.package or "", str(default.config_path).split("/")[0]))
        return files

    def _path(self, config_path: str) -> Path | None:
        for source in self._repository.get_sources():
            path = Path(source.path) / f"{config_path}.yaml"
            # Path.is_file raises an error for a name that is too long.
            if source.scheme() == "file" and os.path.isfile(path):
                return path
        return None

    def _explain(self, error: Exception, overrides: Sequence[Override]) -> ConfigError:
        """Returns the error for a failed composition. Determines the known keys and the origins only from the group
        choices."""
        choices = [str(override.input_line) for override in overrides if self._adds_files(override)]
        try:
            listed = self._loader.compute_defaults_list(self.config_name, choices, RunMode.RUN)
            files = self._files(listed.defaults)
        except COMPOSITION_ERRORS:
            # There is an error in a defaults list, either in the file of a choice or in the main configuration.
            names = [self.config_name, *(f"{o.key_or_group}/{o.value()}" for o in self._parse(choices))]
            files = [ConfigFile(path, "", "") for path in map(self._path, names) if path is not None]
        try:
            known = self._loader.load_configuration(self.config_name, choices, run_mode=RunMode.RUN)
            keys = explain.known_keys(known)
        except COMPOSITION_ERRORS:
            keys = explain.known_keys(OmegaConf.structured(STRUCTURED))
        return explain.composition(error, Origins(overrides, files), keys)

    def _adds_files(self, override: Override) -> bool:
        """Returns whether an override selects one choice of a group, or folders that contain choices."""
        is_of_files = override.key_or_group == SEARCHPATH or self._repository.group_exists(override.key_or_group)
        if not is_of_files or override.is_sweep_override():
            return False
        return not isinstance(override.value(), dict)


def resolve(job: Job) -> DictConfig:
    """Returns the configuration for the job's task, without Hydra's node and with all interpolations resolved."""
    return resolve_with_environment(job)[0]


def resolve_with_environment(job: Job) -> tuple[DictConfig, dict[environment.Path, environment.FromEnvironment]]:
    """Returns the configuration as `resolve` does, and the values in it that depend on environment variables."""
    settings = HydraConfig.instance()
    before = settings.cfg
    config = job.config
    try:
        settings.set_config(config)
        with read_write(config.hydra.runtime), open_dict(config.hydra.runtime):
            config.hydra.runtime.output_dir = os.path.abspath(_output_dir(config))
        settings.set_config(config)
        with open_dict(config):
            del config["hydra"]
        found = environment.found_in(config)
        environment.resolve(config)
        return config, found
    except OmegaConfBaseException as error:
        raise explain.unresolvable(error, config, job.origins) from error
    finally:
        settings.cfg = before


def as_typed(hydra: Any) -> tuple[str, tuple[str, ...]]:
    """Returns a string with the overrides that distinguish this job, and a tuple of all its overrides. Interpolations
    are not resolved."""
    node: Any = OmegaConf.to_container(hydra, resolve=False)
    return str(node["job"]["override_dirname"]), tuple(map(str, node["overrides"]["task"]))


def _mode(config: DictConfig, origins: Origins) -> RunMode | None:
    try:
        mode: RunMode | None = config.hydra.mode
        return mode
    except OmegaConfBaseException as error:
        raise explain.refusal("hydra.mode", origins, "expected one of RUN, MULTIRUN") from error


def _output_dir(config: Any) -> str:
    if config.hydra.mode == RunMode.MULTIRUN:
        return os.path.join(str(config.hydra.sweep.dir), str(config.hydra.sweep.subdir))
    return str(config.hydra.run.dir)


def _check_given_once(swept: Override, overrides: Sequence[Override]) -> None:
    """Raises ConfigError if a key that a sweep varies is also in another override. The jobs would then be the same, or
    would have the same folder."""
    for other in overrides:
        if other is not swept and other.get_key_element() == swept.get_key_element():
            raise explain.given_twice(swept, other)


def _check_swept(override: Override, overrides: Sequence[Override]) -> None:
    """Raises ConfigError if a sweep cannot vary this key."""
    if override.is_hydra_override():
        about = Setting.typed(str(override.input_line))
        raise ConfigError("a sweep cannot vary Hydra's own settings").about(about)
    _check_given_once(override, overrides)


def _lines(overrides: Sequence[Override], *, swept: bool) -> list[str]:
    """Returns the overrides that define a sweep, or the other overrides, as they were typed."""
    return [str(one.input_line) for one in overrides if one.is_sweep_override() == swept]


def _folders(searchpath: Override) -> list[str]:
    """Returns the folders in `hydra.searchpath=[...]`."""
    folders = searchpath.value()
    if not isinstance(folders, list) or not all(isinstance(folder, str) for folder in folders):
        about = Setting.typed(str(searchpath.input_line))
        raise ConfigError("expected a list of folders, such as [FOLDER]").about(about)
    return folders


def _names_no_value(override: Override) -> bool:
    """Returns whether an override sweeps over no values, for example an empty range or a pattern without matches."""
    if not override.is_sweep_override() or isinstance(override.value(), IntervalSweep):
        return False
    return not list(override.sweep_string_iterator())
