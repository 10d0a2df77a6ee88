"""Private folders for the files of one mpirun and its ranks. Files that killed processes left behind are removed
together with these folders.

By default, the names of mpirun's rendezvous files depend only on its pid. mpirun refuses to start if a killed mpirun
with the same pid left such files behind: "The PMIx server's listener thread failed to start" (openpmix/openpmix issue
4022). In a container, pids soon repeat. Also, ranks on one machine exchange data through files of 16 MiB each, which
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

# PRRTE's parameter for the temporary folder on this machine only. Daemons on other hosts have no such files.
TEMPORARY = "PRTE_MCA_prte_local_tmpdir_base"
# The name of each parameter that chooses the folder contains this text. PRRTE refuses to combine a parameter for all
# hosts with a parameter for this machine.
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
    """Removes the folders that killed runs left behind and creates new folders. Returns the new folders, keyed by the
    environment variable that passes each folder to mpirun.

    If the user has already chosen a folder on mpirun's command line `argv`, in an environment variable or in a
    parameter file, this function creates no other folder for the same purpose. Creates a folder for shared-memory
    segments only if all ranks are on this machine (`alone`), because that folder would not exist on other hosts. Raises
    LaunchError if the folder for temporary files cannot be created.
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
        # If this folder cannot be created, Open MPI chooses a folder for the segments.
        with contextlib.suppress(OSError):
            made[SEGMENTS] = OwnFolder.make(shared_memory)
    return made
