"""What this project's own exchanges can send, and what their processes need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from parallax_runner.collectives.backend import Backend, Lack
from parallax_runner.errors import ConfigError, Setting

if TYPE_CHECKING:
    from parallax_runner.collectives.backend_ops import BackendOps
    from parallax_runner.collectives.row_kernels import RowKernels

INTEGERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "int64")
FLOATS = ("bfloat16", "float16", "float32", "float64")


class Native(Backend):
    """TensorFlow ops over MPI, without negotiation: all ranks run one graph, so messages match by the op's key."""

    title = "the native exchanges"
    needs_mpirun = True
    takes_gpus = False
    op_types = r"Parallax(Sum|Gather|AllToAll|Broadcast)"
    sent_dtypes = frozenset([*INTEGERS, *FLOATS])

    def lack(self) -> Lack | None:
        """Returns what is missing to make the library, or None if this host has it or can make it."""
        from parallax_runner.collectives.native.library import lack

        return lack()

    def preparation(self) -> str | None:
        """Returns that the library will be compiled, or None."""
        from parallax_runner.collectives.native.library import exists

        return None if exists() else "compiling the native exchanges, once for this machine"

    def prepare(self) -> None:
        """Compiles the library if this host's cache does not have it. Raises CollectiveError if that fails."""
        from parallax_runner.collectives.native.library import library

        library()

    def ops(self) -> BackendOps:
        """Imports TensorFlow, loads the library and returns the ops. Raises CollectiveError if the library cannot be
        compiled or loaded."""
        from parallax_runner.collectives.native.ops import native_ops

        return native_ops()

    def row_kernels(self) -> RowKernels:
        """Returns the ops on rows. Raises the same errors as `ops`."""
        from parallax_runner.collectives.native.ops import native_ops

        return native_ops().row_kernels

    def without_mpirun(self, hosts: Sequence[str]) -> list[dict[str, str]]:
        """Raises ConfigError: the messages need MPI."""
        raise ConfigError("the native exchanges need mpirun, which cluster=manual does not use").about(
            Setting.of("comm.backend", "native"), remedy="use comm.backend=horovod"
        )
