"""What the stages without TensorFlow must know about a library that exchanges tensors: what it can send, and what its
processes need to start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parallax_runner.collectives.backend_ops import BackendOps
    from parallax_runner.collectives.row_kernels import RowKernels


@dataclass(frozen=True)
class Lack:
    """What keeps a backend from working: a clause, and what the user can do about it."""

    reason: str
    remedy: str


@dataclass(frozen=True)
class Awaited:
    """The ranks for which exchanges of a process have waited for a long time, and the name of the exchange that has
    waited longest, or None if none has."""

    ranks: tuple[int, ...] = ()
    exchange: str | None = None

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Awaited:
        """Returns what `fields` describes. Raises ValueError if it describes nothing."""
        ranks, exchange = fields.get("ranks"), fields.get("exchange")
        if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
            raise ValueError(f"not ranks: {ranks!r}")
        if not isinstance(exchange, str | None):
            raise ValueError(f"not the name of an exchange: {exchange!r}")
        return cls(tuple(ranks), exchange)

    @property
    def fields(self) -> dict[str, Any]:
        """The same as JSON values, for a message to the driver."""
        return {"ranks": list(self.ranks), "exchange": self.exchange}


NOTHING_AWAITED = Awaited()


class Backend(ABC):
    """A library with which ranks exchange tensors.

    Class attributes: `title` is its name in messages. `package` is the Python package that must have the same version
    on all hosts, or None. `op_types` is a regular expression for the types of its TensorFlow ops. `sent_dtypes` are the
    names of the dtypes that its ops can move and sum, directly or as another dtype. `threads_remedy` tells how to start
    MPI with MPI_THREAD_MULTIPLE. `variables` are the prefixes of the environment variables that configure it, which
    processes on other hosts get too.
    """

    title: str
    package: str | None = None
    op_types: str
    sent_dtypes: frozenset[str]
    variables: tuple[str, ...] = ()
    # Whether the ranks find each other only if mpirun starts them.
    needs_mpirun: bool = False
    # Whether workers that use GPUs can exchange tensors.
    takes_gpus: bool = True
    threads_remedy: str = "use an MPI library that has threads"

    @abstractmethod
    def lack(self) -> Lack | None:
        """Returns what this host lacks to exchange tensors, or None."""

    def preparation(self) -> str | None:
        """Returns what `prepare` has to do that takes time, for the user, or None."""
        return None

    def prepare(self) -> None:
        """Makes on this host what its processes need. Called before they start."""
        return

    @abstractmethod
    def ops(self) -> BackendOps:
        """Imports TensorFlow and returns the ops."""

    def row_kernels(self) -> RowKernels | None:
        """Returns the library's own ops on rows, or None if graphs must use TensorFlow's ops."""
        return None

    def without_mpi_by(self, environ: Mapping[str, str]) -> str | None:
        """Returns the name of the environment variable that makes ranks find each other without MPI, or None if there
        is none. Ranks that mpirun starts cannot do so."""
        return None

    def beside_each_other(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Returns environment variables for ranks that mpirun starts on one machine. A variable in `environ` is the
        user's, and is not overridden."""
        return {}

    @abstractmethod
    def without_mpirun(self, hosts: Sequence[str]) -> list[dict[str, str]]:
        """Returns, for each rank, environment variables for ranks that no mpirun starts. `hosts` has the host of each
        rank."""

    @property
    def note_without_mpirun(self) -> str | None:
        """What a plan tells about ranks that no mpirun starts, or None."""
        return None
