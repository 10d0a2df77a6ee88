"""The command line (`python -m parallax_runner` or `parallax`): checks all jobs, then lets Hydra run them."""

import argparse
import contextlib
import functools
import io
import os
import re
import sys
from collections.abc import Sequence

import hydra
from hydra._internal.utils import get_args_parser

from parallax_runner.config import completion
from parallax_runner.config.command_line import with_more
from parallax_runner.config.command_without_job import command_without_job
from parallax_runner.config.compose import CONFIG_NAME, VERSION_BASE, Composer, register_schema
from parallax_runner.config.flags import VERSION_MEANING, ShowVersion, parsed
from parallax_runner.config.help import help_text
from parallax_runner.config.hydra_settings import explained
from parallax_runner.config.location import conf_dir
from parallax_runner.driver.check import CheckedSweep, check
from parallax_runner.errors import COMMAND_LINE, ConfigError, Setting
from parallax_runner.process.exit_status import tell
from parallax_runner.process.home import set_home
from parallax_runner.process.terminal import keep_going
from parallax_runner.sweep import job
from parallax_runner.track.origin import program


def main() -> int:
    """Runs the command line and returns the exit status."""
    keep_going()
    set_home()
    try:
        arguments = parse()
        text = answer(arguments)
        if text is not None:
            print(text)
            return 0
        if arguments.hydra_help or arguments.info or arguments.shell_completion:
            return _show(arguments)
        return _run(arguments)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return tell(error)


def _show(arguments: argparse.Namespace) -> int:
    """Lets Hydra print its help, its information, or a script for shell completion. No job runs."""
    if arguments.hydra_help or arguments.info:  # reports errors before Hydra does
        _composer(arguments).command(arguments.overrides, multirun=arguments.multirun)
    register_schema()
    if arguments.hydra_help:
        # Hydra composes only its own settings here and rejects other keys.
        sys.argv[1:] = [word for word in sys.argv[1:] if word not in arguments.overrides]
        return _hydra_help()
    _hydra(arguments.overrides)
    return 0


def _run(arguments: argparse.Namespace) -> int:
    """Checks all jobs, and runs them."""
    sweep = check(arguments)
    command = command_without_job(arguments)
    if command is not None:
        command.action.run_command(command)
        return 0
    register_schema()
    if sweep is not None:
        return _sweep(sweep, arguments.overrides)
    _hydra(arguments.overrides)
    return 0


def _composer(arguments: argparse.Namespace) -> Composer:
    return Composer(arguments.config_name or CONFIG_NAME, arguments.config_path, arguments.config_dir)


def command() -> int:
    """Runs the console command `parallax`. Like `python -m`, this command imports modules from the current folder, not
    from the folder that contains its executable."""
    if not sys.flags.safe_path:
        with contextlib.suppress(FileNotFoundError):  # the folder was deleted
            sys.path[0] = os.getcwd()
    return main()


def answer(arguments: argparse.Namespace) -> str | None:
    """Returns the text to print in place of Hydra's output, or None if Hydra or a run handles the command."""
    if arguments.shell_completion:
        completion.show_hydra_a_line_it_knows()
        return completion.script(arguments.overrides)
    if arguments.help:
        return help_text(_composer(arguments), arguments.overrides, resolved=arguments.resolve)
    return None


def _hydra(overrides: Sequence[str]) -> None:
    with explained(overrides, job_file=str(job.__file__)):
        hydra.main(version_base=VERSION_BASE, config_path=str(conf_dir()), config_name=CONFIG_NAME)(job.run)()


def _hydra_help() -> int:
    """Prints Hydra's help, but describes what `--version` does in this project."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):  # Hydra exits after its help
        _hydra([])
    print(re.sub(r"(--version : ).*", rf"\g<1>{VERSION_MEANING}", text.getvalue()), end="")
    return 0


def _sweep(sweep: CheckedSweep, overrides: list[str]) -> int:
    # This module is imported here, because a single run does not need it and would start more slowly with it.
    from parallax_runner.sweep.sweep import run_sweep

    typed = sys.argv[1:]
    sys.argv[1:] = with_more(typed, overrides, sweep.more_lines)
    kept, others = ([word for word in words if not word.startswith("hydra.sweep.dir=")] for words in (typed, overrides))
    return run_sweep(sweep, with_more(kept, others, [sweep.dir_line]), functools.partial(_hydra, overrides))


def first_job(words: list[str], overrides: list[str]) -> list[str]:
    """Returns the command line with each sweep override replaced by its first value."""
    composer = Composer()
    return [composer.first_value(word) if word in overrides else word for word in words]


def _check_working_directory() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise ConfigError("the current folder was deleted: change to another folder") from error


def parse() -> argparse.Namespace:
    """Parses Hydra's own arguments and rejects combinations that make Hydra fail with a traceback.

    For a sweep, options that show a configuration show its first job: `-m` is removed, and each sweep override keeps
    only its first value.
    """
    parser = get_args_parser()
    parser._optionals.conflict_handler = "resolve"  # Hydra already has an option --version
    parser.add_argument("--version", action=ShowVersion, const=lambda: str(program()))
    arguments = parsed(parser, sys.argv[1:])
    _check_working_directory()
    if arguments.multirun and (arguments.cfg or arguments.info or arguments.help):
        words = [word for word in sys.argv if word not in ("-m", "--multirun")]
        sys.argv[:] = first_job(words, arguments.overrides)
        arguments = parsed(parser, sys.argv[1:])
    _check_flags(arguments)
    return arguments


def _check_flags(arguments: argparse.Namespace) -> None:
    asked = [arguments.run, arguments.multirun, arguments.cfg, arguments.shell_completion, arguments.info]
    if sum(map(bool, asked)) > 1:
        raise ConfigError("only one of --run, --multirun, --cfg, --info and --shell-completion can be given")
    if arguments.resolve and not (arguments.cfg or arguments.help):
        raise ConfigError("--resolve needs --cfg or --help: add one of these options")
    if arguments.experimental_rerun:
        raise ConfigError(
            "this flag is not supported, because Hydra would run the saved configuration without checking it"
        ).about(
            Setting.of("--experimental-rerun", arguments.experimental_rerun, where=COMMAND_LINE),
            remedy="repeat the run's command",
        )


if __name__ == "__main__":
    sys.exit(main())
