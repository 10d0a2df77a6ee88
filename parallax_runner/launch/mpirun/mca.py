"""Finds the parameters of Open MPI (MCA parameters) that a user has set. This package must not override them."""

import contextlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

# Options of mpirun that name a comma-separated list of files with further parameters.
TUNING = ("--tune", "-tune", "--am", "-am")
# Prefixes of the environment variables of Open MPI, of PRRTE, which is its mpirun, and of PMIx.
VARIABLES = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_")
PROJECTS: tuple[Literal["openmpi", "prte", "pmix"], ...] = ("openmpi", "prte", "pmix")


def words_of_user(
    project: Literal["openmpi", "prte", "pmix"], argv: Sequence[str], environ: Mapping[str, str] = os.environ
) -> frozenset[str]:
    """Returns a set of words that includes the name of each parameter that the user has set on mpirun's command line
    `argv`, in an environment variable, or in a file. Variables are listed without the prefix before the parameter's
    name."""
    variables = {re.sub(r"^[A-Z]+_MCA_", "", name) for name in environ}
    return frozenset({*argv, *variables}.union(*map(_words, _files(project, argv))))


def settings_of_user(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the user's own parameters outside mpirun's command line `argv`, as text for a message: "OMPI_MCA_pml=ucx"
    for an environment variable, and the path of each file with parameters."""
    variables = [f"{name}={value}" for name, value in sorted(environ.items()) if name.startswith(VARIABLES)]
    files = [path for project in PROJECTS for path in _files(project, argv) if _words(path) - {""}]
    return [*variables, *map(str, dict.fromkeys(files))]


def _files(project: str, argv: Sequence[str]) -> Iterator[Path]:
    """Yields the parameter files in the installation that contains `argv[0]` and in the user's home folder, and the
    parameter files named on the command line."""
    yield Path(argv[0]).parent.parent / f"etc/{project}-mca-params.conf"
    yield Path(f"~/.{project}/mca-params.conf")
    for option, value in itertools.pairwise(argv):
        if option in TUNING:
            yield from map(Path, value.split(","))


def _words(path: Path) -> set[str]:
    with contextlib.suppress(OSError, RuntimeError):  # The file or the home folder does not exist.
        lines = path.expanduser().read_text(errors="replace").splitlines()
        return {word for line in lines if not line.lstrip().startswith("#") for word in re.split(r"[\s=]+", line)}
    return set()
