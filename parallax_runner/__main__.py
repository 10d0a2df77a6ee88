"""`python -m parallax_runner`: composes and checks every job, then lets Hydra run them."""

import argparse
import sys
import traceback

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from hydra.types import RunMode
from omegaconf import DictConfig

from parallax_runner.config.compose import CONFIG_NAME, VERSION_BASE, check, register_schema
from parallax_runner.config.location import conf_dir
from parallax_runner.errors import ParallaxError


class JobFailed(CompactHydraException):
    """One job of a sweep has failed, and said why; the others still run."""


def main() -> int:
    """Runs the command line and returns the exit status: this is the only place that decides it."""
    statuses: list[int] = []  # of jobs that failed in this process

    def job(config: DictConfig) -> float | None:
        try:
            from parallax_runner.pipeline import drive

            return drive(config)
        except (Exception, SystemExit) as error:
            status = report(error)
            if status == 0:
                return None
            statuses.append(status)
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                raise JobFailed(f"exit status {status}") from error
            raise SystemExit(status) from error

    try:
        arguments = parse()
        if not (arguments.help or arguments.hydra_help or arguments.info or arguments.shell_completion):
            check(arguments)
        register_schema()
        hydra.main(version_base=VERSION_BASE, config_path=str(conf_dir()), config_name=CONFIG_NAME)(job)()
    except KeyboardInterrupt:
        return 130
    except (Exception, SystemExit) as error:
        return max(statuses) if statuses else report(error)
    return 0


def report(error: BaseException) -> int:
    """Tells the user what went wrong and returns the exit status that belongs to it."""
    if isinstance(error, ParallaxError):
        print(f"parallax_runner: {error}", file=sys.stderr)
        return error.exit_status
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    traceback.print_exception(error)
    return 1


def parse() -> argparse.Namespace:
    """Hydra's own arguments; combinations that make it fail with a traceback are refused as its parser would."""
    parser = get_args_parser()
    arguments = parser.parse_args()
    asked = [arguments.run, arguments.multirun, arguments.cfg, arguments.shell_completion, arguments.info]
    if sum(map(bool, asked)) > 1:
        parser.error("only one of --run, --multirun, --cfg, --info and --shell-completion can be given")
    if arguments.resolve and not (arguments.cfg or arguments.help):
        parser.error("--resolve goes with --cfg or --help")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
