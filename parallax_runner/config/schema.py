"""One frozen dataclass for each group of the configuration: types, units and ranges.

A validated configuration is a `RunConfig`; `dataclasses.replace` makes one with other values. The values stand in
`conf/`; those that all choices of `comm` share stand here. The comment that says what a field means stands beside the
value: docs/configuration.md has both. A field's metadata holds what its type cannot say: `minimum` (the least value),
`maximum`, `above` (a bound the value must exceed) or `choices`, which `validate.py` checks, and `unit`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from parallax_runner.config.objective import DIRECTIONS

MOST_PROCESSES = 100_000  # of a kind: the driver has a list of them, and a slip of the finger must not fill its memory


@dataclass(frozen=True)
class TrainConfig:
    """Group `train`: how long, from which seed."""

    steps: int | None = field(default=MISSING, metadata={"minimum": 1, "unit": "steps"})
    seed: int = field(default=MISSING, metadata={"minimum": 0})
    log_every: int = field(default=MISSING, metadata={"minimum": 1, "unit": "steps"})
    validate_steps: int | None = field(default=None, metadata={"minimum": 1, "unit": "steps"})
    objective: str | None = None
    direction: str | None = field(default=None, metadata={"choices": DIRECTIONS})
    patience: int | None = field(default=None, metadata={"minimum": 1, "unit": "validations"})
    hang_timeout_secs: float = field(default=MISSING, metadata={"minimum": 2, "unit": "seconds"})
    stall_timeout_secs: float | None = field(default=None, metadata={"minimum": 10, "unit": "seconds"})
    max_restarts: int = field(default=MISSING, metadata={"minimum": 0, "unit": "restarts"})
    on_nan: str = field(default=MISSING, metadata={"choices": ("stop", "skip")})

    @property
    def total_steps(self) -> int:
        """`steps`, where the model is no script."""
        assert self.steps is not None
        return self.steps


@dataclass(frozen=True)
class MpiConfig:
    """`comm.mpi`: for the modes that start their workers with mpirun; under `ps` they exchange nothing over MPI."""

    # Added to mpirun's command line: a string, split as a shell does, or a list of strings.
    mpirun_options: str | tuple[str, ...] = ""
    # Sparse gradients that stay with the ranks travel by MPI's Allgatherv, not by Horovod. With mpi and hybrid.
    use_allgatherv: bool = False


@dataclass(frozen=True)
class PsConfig:
    """`comm.ps`: for the modes that keep variables on servers."""

    # What TensorFlow's servers and workers speak; a build of TensorFlow may know others, such as grpc+verbs.
    protocol: str = "grpc"
    # A worker adds up its replicas' gradients and pushes once; false: each replica pushes its own.
    local_aggregation: bool = True
    # Each replica keeps a copy of dense variables, refreshed after every step. Needs sync=true.
    replicate_variables: bool = False
    # Gradients are prepared for the update on their server; false: on the chief.
    boundary_among_servers: bool = True
    # Lookups and casts run where less travels for it; false: on the worker.
    boundary_between_workers_and_servers: bool = True
    # Steps that a worker may be ahead of the slowest one; null: any number. Needs sync=false.
    staleness: int | None = field(default=None, metadata={"minimum": 1, "unit": "steps"})
    # A step is complete without this many workers; gradients that they bring late are dropped. Needs sync=true.
    backup_workers: int = field(default=0, metadata={"minimum": 0, "unit": "workers"})


@dataclass(frozen=True)
class RoutesConfig:
    """`comm.routes`: the route of gradients of each kind, by its name."""

    dense: str = MISSING  # The route of dense gradients.
    sparse: str = MISSING  # The route of sparse gradients.


@dataclass(frozen=True)
class CommConfig:
    """Group `comm`: how gradients travel. A choice's file has its name and what differs from the defaults here.

    Without `routes` the cost model chooses one for each variable.
    """

    name: str = MISSING  # The mode, as the choice is called.
    routes: RoutesConfig | None = None
    # Every step waits for every worker; false, with ps: each worker applies its own gradients at once.
    sync: bool = True
    # The mean over workers of sparse gradients; false: their sum.
    average_sparse: bool = True
    # Wire type of gradients and rows: half the bytes, rounded values. Ids are not compressed. Not with local.
    compression: str = field(default="off", metadata={"choices": ("off", "fp16", "bf16")})
    # A short trial measures which rows steps touch, and is kept for later runs. Servers are then balanced by the
    # measured rows, not by bounds; the plan predicts bytes, and the time of synchronous steps of all workers; auto
    # chooses routes by it.
    measure_rows: bool = False
    # Whether rows that are spread over the ranks are fetched while the step before runs, as far as it does not write
    # them; the result is the same. auto: if workers are on several hosts.
    lookahead: str = field(default="auto", metadata={"choices": ("auto", "off", "1")})
    mpi: MpiConfig = field(default_factory=MpiConfig)
    ps: PsConfig = field(default_factory=PsConfig)


@dataclass(frozen=True)
class PartitionConfig:
    """Group `partition`: into how many shards the variables of sparse gradients are cut."""

    # The choice.
    name: str = field(default=MISSING, metadata={"choices": ("off", "fixed", "search")})
    num: int = field(default=MISSING, metadata={"minimum": 1, "unit": "shards"})
    cut: str = field(default="alike", metadata={"choices": ("alike", "by_bytes")})
    min: int | None = field(default=None, metadata={"minimum": 1, "unit": "shards"})
    max: int | None = field(default=None, metadata={"minimum": 1, "unit": "shards"})
    steps_per_trial: int | None = field(default=None, metadata={"minimum": 2, "unit": "steps"})


@dataclass(frozen=True)
class ClusterConfig:
    """Group `cluster`: which processes run, and where."""

    workers: int = field(default=MISSING, metadata={"minimum": 1, "maximum": MOST_PROCESSES, "unit": "workers"})
    servers: int = field(default=MISSING, metadata={"minimum": 0, "maximum": MOST_PROCESSES, "unit": "servers"})
    replicas_per_worker: int = field(
        default=MISSING, metadata={"minimum": 1, "maximum": MOST_PROCESSES, "unit": "replicas"}
    )
    cpu_devices: int | None = field(default=None, metadata={"minimum": 1, "maximum": MOST_PROCESSES, "unit": "devices"})
    threads_per_worker: int = field(default=MISSING, metadata={"minimum": 1, "unit": "threads"})
    resource_info: str | tuple[str, ...] | None = MISSING
    launcher: str = "auto"
    remote_shell: str = "ssh"
    gpu_memory_fraction: float | None = field(default=None, metadata={"above": 0, "unit": "share"})
    allow_growth: bool = False
    soft_placement: bool = False
    nodes: int = field(default=1, metadata={"minimum": 1, "maximum": MOST_PROCESSES, "unit": "nodes"})
    tasks_per_node: int = field(default=1, metadata={"minimum": 1, "maximum": MOST_PROCESSES, "unit": "tasks"})
    time_limit: str | int | None = None
    submit: bool = True
    follow: bool = False
    sbatch_options: str | tuple[str, ...] = ""
    # Where the driver and processes that somebody else starts find each other: file:///FOLDER, tcp://HOST:PORT or redis://HOST:PORT/PREFIX.
    rendezvous: str | None = None
    # How long the driver waits for these processes; then it names those that are missing.
    rendezvous_timeout_secs: float = field(default=300.0, metadata={"above": 0, "unit": "seconds"})


@dataclass(frozen=True)
class CkptConfig:
    """Group `ckpt`: when checkpoints are written, and what a run starts from."""

    enabled: bool = MISSING
    dir: str | None = None
    save_steps: int | None = field(default=None, metadata={"minimum": 1, "unit": "steps"})
    save_secs: float | None = field(default=None, metadata={"above": 0, "unit": "seconds"})
    keep: int | None = field(default=None, metadata={"minimum": 1, "unit": "checkpoints"})
    resume: str = "never"

    @property
    def folder(self) -> str:
        """`dir` where checkpoints are enabled."""
        assert self.dir is not None
        return self.dir


@dataclass(frozen=True)
class ProfileConfig:
    """Group `profile`: of which steps RunMetadata is taken; `steps` and `range` go with the choice of that name."""

    # The choice.
    name: str = field(default=MISSING, metadata={"choices": ("off", "steps", "range")})
    dir: str | None = None
    steps: tuple[int, ...] = ()
    range: tuple[int, ...] = ()
    worker: int | None = field(default=None, metadata={"minimum": 0})


@dataclass(frozen=True)
class TrackingConfig:
    """Group `tracking`: where parameters and metrics are recorded."""

    enabled: bool = MISSING
    tracker: str = "mlflow"
    options: dict[str, Any] = field(default_factory=dict)  # for trackers of other packages
    uri: str | None = None
    experiment: str | None = None
    run_name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    log_checkpoints: str = field(default="none", metadata={"choices": ("last", "best", "all", "none")})


@dataclass(frozen=True)
class SweepConfig:
    """What concerns the jobs of a sweep together."""

    fail_fast: bool = MISSING
    # So many of the best jobs become one model that averages their predictions, in the sweep's folder.
    ensemble: int | None = field(default=None, metadata={"minimum": 2, "unit": "jobs"})
    # Jobs that run at a time have a GPU each.
    device_per_job: bool = False
    dir: str | None = None


@dataclass(frozen=True)
class SimulateConfig:
    """The cluster of action=simulate, beside cluster.workers."""

    bandwidth_gbit_per_sec: float | None = field(default=None, metadata={"above": 0, "unit": "Gbit/s"})
    latency_us: float | None = field(default=None, metadata={"minimum": 0, "unit": "µs"})
    workers_per_host: int = field(default=1, metadata={"minimum": 1, "unit": "workers"})
    profile: str | None = None


@dataclass(frozen=True)
class RunConfig:
    """The whole configuration. `model`, `data` and `optimizer` hold `_target_` and its arguments, as their files do."""

    action: str = field(
        default=MISSING, metadata={"choices": ("train", "plan", "verify", "search", "simulate", "sync")}
    )
    run_dir: str = MISSING
    redirect_path: str | None = None
    export_graph_path: str | None = None
    model_name: str = MISSING
    sweep: SweepConfig = field(default_factory=SweepConfig)
    simulate: SimulateConfig = field(default_factory=SimulateConfig)
    data: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    train: TrainConfig = field(default_factory=TrainConfig)
    comm: CommConfig = field(default_factory=CommConfig)
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    ckpt: CkptConfig = field(default_factory=CkptConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)


FREE_GROUPS = ("data", "optimizer", "model")
# Keys of earlier versions, and what the message says of each.
REMOVED_KEYS = {"comm.hot_rows": "this key was removed, since copies of hot rows made no step faster; leave it out"}
