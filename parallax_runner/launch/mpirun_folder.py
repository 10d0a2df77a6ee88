"""A temporary folder of its own for the files by which an mpirun is found.

By itself mpirun names them after its pid only, and refuses to start where a killed one of the same pid has left some:
"The PMIx server's listener thread failed to start" (openpmix/openpmix issue 4022). Where pids are few, as in a
container, they soon come again.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence

from parallax_runner.errors import LaunchError
from parallax_runner.launch.mca import words_of_user

# PRRTE's parameter for this machine alone: daemons on other hosts have no such files.
VARIABLE = "PRTE_MCA_prte_local_tmpdir_base"
# Part of the name of each parameter that chooses the folder. PRRTE refuses one for all hosts and one for this together.
CHOICE = "tmpdir_base"


def make_folder(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> str | None:
    """A new folder in the temporary directory, None where the user has chosen one: on mpirun's command line `argv`, by
    a variable, or in a file of parameters. Raises LaunchError where none can be made."""
    if any(CHOICE in word for word in words_of_user("prte", argv, environ)):
        return None
    try:
        return tempfile.mkdtemp(prefix="parallax_runner.")
    except OSError as error:
        raise LaunchError(f"mpirun needs a folder for temporary files: {error}") from error
