"""Folders of its own for the files of one mpirun and its ranks: what they leave when they are killed goes with them.

By itself mpirun names the files by which it is found after its pid only, and refuses to start where a killed one of the
same pid has left some: "The PMIx server's listener thread failed to start" (openpmix/openpmix issue 4022). Where pids
are few, as in a container, they soon come again. And ranks on one machine exchange data in files of 16 MiB each, which
stay in memory when mpirun is killed.
"""

import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from parallax_runner.errors import LaunchError
from parallax_runner.launch.mpirun.mca import words_of_user
from parallax_runner.launch.own_folder import OwnFolder, remove_left_over

# PRRTE's parameter for this machine alone: daemons on other hosts have no such files.
TEMPORARY = "PRTE_MCA_prte_local_tmpdir_base"
# Part of the name of each parameter that chooses the folder. PRRTE refuses one for all hosts and one for this together.
TEMPORARY_CHOICE = "tmpdir_base"
SEGMENTS = "OMPI_MCA_btl_sm_backing_directory"
SEGMENTS_CHOICE = "btl_sm_backing_directory"
SHARED_MEMORY = Path("/dev/shm")


def make_folders(
    argv: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    *,
    alone: bool = True,
    shared_memory: Path = SHARED_MEMORY,
) -> dict[str, OwnFolder]:
    """New folders by the variables that name them to mpirun, after those that killed runs have left are gone.

    Without those that the user has chosen: on mpirun's command line `argv`, by a variable, or in a file of parameters.
    Segments have their own folder where all ranks are on this machine, which is then `alone`: on other hosts it would
    not be there. Raises LaunchError where the folder for temporary files cannot be made.
    """
    temporary = Path(tempfile.gettempdir())
    for parent in (temporary, shared_memory):
        remove_left_over(parent)
    made: dict[str, OwnFolder] = {}
    if not any(TEMPORARY_CHOICE in word for word in words_of_user("prte", argv, environ)):
        try:
            made[TEMPORARY] = OwnFolder.make(temporary)
        except OSError as error:
            raise LaunchError(f"mpirun needs a folder for temporary files: {error}") from error
    if alone and not any(SEGMENTS_CHOICE in word for word in words_of_user("openmpi", argv, environ)):
        # Where none can be made, Open MPI chooses where segments are.
        with contextlib.suppress(OSError):
            made[SEGMENTS] = OwnFolder.make(shared_memory)
    return made
