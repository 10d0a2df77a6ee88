"""One frozen dataclass for each group of the configuration: types, units and ranges.

A validated configuration is a `RunConfig`; `dataclasses.replace` returns a copy with other values. Default values are
in `conf/`, but defaults that all choices of `comm` share are in this module. The comment next to a default value
explains the field, and docs/configuration.md shows both. A field's metadata contains constraints that its type cannot
express: `minimum`, `maximum`, `above` (an exclusive lower bound) or `choices`, which `validate.py` checks, and `unit`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from parallax_runner.config.actions import BUILT_IN
from parallax_runner.config.objective import DIRECTIONS

MOST_PROCESSES = 100_000  # per role, so that a typing error cannot fill the memory with a list of processes


@dataclass(frozen=True)
class TrainConfig:
    """Group `train`: length of training, seed, and handling of failures."""

    steps: int | None = field(default=MISSING, metadata={"minimum": 1, "unit": "steps"})
    seed: int = field(default=MISSING, metadata={"minimum": 0})
    log_every: int = field(default=MISSING, metadata={"minimum": 1, "unit": "steps"})
    validate_steps: int | None = field(default=None, metadata={"minimum": 1, "unit": "steps"})
    accumulate_steps: int = field(default=1, metadata={"minimum": 1, "unit": "passes"})
    mixed_precision: str = field(default="off", metadata={"choices": ("off", "bfloat16")})
    objective: str | None = None
    direction: str | None = field(default=None, metadata={"choices": DIRECTIONS})
    patience: int | None = field(default=None, metadata={"minimum": 1, "unit": "validations"})
    hang_timeout_secs: float = field(default=MISSING, metadata={"minimum": 2, "unit": "seconds"})
    stall_timeout_secs: float | None = field(default=None, metadata={"minimum": 10, "unit": "seconds"})
    max_restarts: int = field(default=MISSING, metadata={"minimum": 0, "unit": "restarts"})
    on_resize: str = field(default="global", metadata={"choices": ("global", "per_worker")})
    scale_lr: str = field(default="none", metadata={"choices": ("none", "linear", "sqrt")})
    on_nan: str = field(default=MISSING, metadata={"choices": ("stop", "skip")})

    @property
    def total_steps(self) -> int:
        """The value of `steps` for a model that is not a script."""
        assert self.steps is not None
        return self.steps


@dataclass(frozen=True)
class ScheduleConfig:
    """`update.schedule`: the learning rate as a function of the global step."""

    warmup_steps: int = field(default=0, metadata={"minimum": 0, "unit": "steps"})
    decay: str = field(default="constant", metadata={"choices": ("constant", "linear", "cosine", "exponential")})
    decay_steps: int | None = field(default=None, metadata={"minimum": 1, "unit": "steps"})
    decay_rate: float | None = field(default=None, metadata={"above": 0, "unit": "share"})
    end_fraction: float = field(default=0.0, metadata={"minimum": 0, "maximum": 1, "unit": "share"})

    @property
    def changes(self) -> bool:
        """Whether the learning rate depends on the step."""
        return self.warmup_steps > 0 or self.decay != "constant"


@dataclass(frozen=True)
class UpdateConfig:
    """Group `update`: how the optimizer of a TensorFlow 1 graph updates variables."""

    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    clip_norm: float | None = field(default=None, metadata={"above": 0, "unit": "norm"})
    clip_value: float | None = field(default=None, metadata={"above": 0, "unit": "gradient"})
    global_clip_norm: float | None = field(default=None, metadata={"above": 0, "unit": "norm"})
    weight_decay: float | None = field(default=None, metadata={"above": 0, "unit": "share"})
    exclude_from_weight_decay: tuple[str, ...] = ()


@dataclass(frozen=True)
class MpiConfig:
    """`comm.mpi`: options for the modes that start workers with mpirun. Under `ps`, workers do not exchange data over
    MPI."""

    # Extra options for mpirun: a string, which is split like a shell command, or a list of strings.
    mpirun_options: str | tuple[str, ...] = ""
    # Gather sparse gradients with MPI's Allgatherv instead of Horovod, unless a server handles them. Only with mpi and
    # hybrid.
    use_allgatherv: bool = False


@dataclass(frozen=True)
class PsConfig:
    """`comm.ps`: options for the modes that keep variables on servers."""

    # Protocol between TensorFlow servers and workers. Some builds of TensorFlow support others, such as grpc+verbs.
    protocol: str = "grpc"
    # Each worker adds up the gradients of its replicas and pushes the sum; false: each replica pushes its own
    # gradients.
    local_aggregation: bool = True
    # Each replica keeps a copy of dense variables, refreshed after every step. Needs sync=true.
    replicate_variables: bool = False
    # Post-process each gradient (for example, clip it) on its variable's server; false: on the chief.
    boundary_among_servers: bool = True
    # Run lookups and casts on the worker or the server, whichever sends fewer bytes; false: on the worker.
    boundary_between_workers_and_servers: bool = True
    # Maximum number of steps by which a worker may be ahead of the slowest worker; null: no limit. Needs sync=false.
    staleness: int | None = field(default=None, metadata={"minimum": 1, "unit": "steps"})
    # Number of slowest workers that a step does not wait for; their late gradients are dropped. Needs sync=true.
    backup_workers: int = field(default=0, metadata={"minimum": 0, "unit": "workers"})


@dataclass(frozen=True)
class RoutesConfig:
    """`comm.routes`: the name of the route for each type of gradient."""

    dense: str = MISSING  # The route for dense gradients.
    sparse: str = MISSING  # The route for sparse gradients.


@dataclass(frozen=True)
class CommConfig:
    """Group `comm`: how gradients are sent. Each choice's file contains the name of the choice and the values that
    differ from these defaults.

    Without `routes`, the cost model chooses a route for each variable.
    """

    name: str = MISSING  # The mode: the name of the choice.
    routes: RoutesConfig | None = None
    # Every step waits for all workers; false (only with ps): each worker applies its own gradients at once.
    sync: bool = True
    # Average sparse gradients over the workers; false: sum them.
    average_sparse: bool = True
    # Wire dtype of gradients and rows. fp16 and bf16 halve the bytes and round the values. Ids are not compressed. No
    # effect with local.
    compression: str = field(default="off", metadata={"choices": ("off", "fp16", "bf16")})
    # Use a short trial to measure the rows that steps touch, and cache the result for later runs. Servers are then
    # balanced by measured rows instead of upper bounds, and the plan predicts bytes and, if every step waits for all
    # workers, step time. auto uses the measurement to choose routes.
    measure_rows: bool = False
    # Fetch rows of other ranks (sharded) one step in advance, during the previous step, unless that step writes them.
    # The result does not change. auto: on if workers are on several hosts, unless the rows were measured and the
    # predicted step is not shorter.
    lookahead: str = field(
        default="auto",
        metadata={
            "choices": ("auto", "off", "on"),
            "replaced": {"1": "on replaces 1 and requests only rows of other ranks in advance"},
        },
    )
    # What carries messages among ranks. native: this project's TensorFlow ops over MPI, on CPUs; sums are added in rank
    # order, so two runs have equal bits. horovod: Horovod. auto: native, but horovod if workers use GPUs, if no mpirun
    # starts the workers, or if native cannot be compiled.
    backend: str = field(default="auto", metadata={"choices": ("auto", "native", "horovod")})
    mpi: MpiConfig = field(default_factory=MpiConfig)
    ps: PsConfig = field(default_factory=PsConfig)


@dataclass(frozen=True)
class PartitionConfig:
    """Group `partition`: the number of shards into which variables with sparse gradients are split."""

    # The choice.
    name: str = field(default=MISSING, metadata={"choices": ("off", "fixed", "search")})
    num: int = field(default=MISSING, metadata={"minimum": 1, "unit": "shards"})
    cut: str = field(default="alike", metadata={"choices": ("alike", "by_bytes")})
    min: int | None = field(default=None, metadata={"minimum": 1, "unit": "shards"})
    max: int | None = field(default=None, metadata={"minimum": 1, "unit": "shards"})
    steps_per_trial: int | None = field(default=None, metadata={"minimum": 2, "unit": "steps"})


@dataclass(frozen=True)
class ClusterConfig:
    """Group `cluster`: the processes of a run and their hosts."""

    workers: int = field(default=MISSING, metadata={"minimum": 1, "maximum": MOST_PROCESSES, "unit": "workers"})
    servers: int = field(default=MISSING, metadata={"minimum": 0, "maximum": MOST_PROCESSES, "unit": "servers"})
    replicas_per_worker: int = field(
        default=MISSING, metadata={"minimum": 1, "maximum": MOST_PROCESSES, "unit": "replicas"}
    )
    cpu_devices: int | None = field(default=None, metadata={"minimum": 1, "maximum": MOST_PROCESSES, "unit": "devices"})
    threads_per_worker: int = field(default=MISSING, metadata={"minimum": 1, "unit": "threads"})
    resource_info: str | tuple[str, ...] | None = MISSING
    launcher: str = "auto"
    options: dict[str, Any] = field(default_factory=dict)  # for launchers from other packages
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
    # Address at which the driver and the processes that you start find each other: file:///FOLDER, tcp://HOST:PORT or
    # redis://HOST:PORT/PREFIX.
    rendezvous: str | None = None
    # Time that the driver waits for these processes before it fails and lists the missing ones.
    rendezvous_timeout_secs: float = field(default=300.0, metadata={"above": 0, "unit": "seconds"})
    # The numbers of workers between which a run changes; null: it has `workers` workers until it ends.
    min_workers: int | None = field(default=None, metadata={"minimum": 1, "maximum": MOST_PROCESSES, "unit": "workers"})
    max_workers: int | None = field(default=None, metadata={"minimum": 1, "maximum": MOST_PROCESSES, "unit": "workers"})
    # How long each start waits for more workers than the smallest number.
    wait_secs: float = field(default=30.0, metadata={"minimum": 0, "unit": "seconds"})
    image: str | None = None
    form: str = field(default="auto", metadata={"choices": ("auto", "jobset", "job")})
    context: str | None = None
    namespace: str | None = None
    job_name: str | None = None
    volumes: tuple[str, ...] = ()
    run_folder: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    service_account: str | None = None
    image_pull_secrets: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[str, ...] = ()
    memory: str | None = None
    gpus_per_worker: int = field(default=0, metadata={"minimum": 0, "maximum": 1024, "unit": "GPUs"})
    gpu_resource: str = "nvidia.com/gpu"
    max_replacements: int = field(default=6, metadata={"minimum": 0, "unit": "pods"})
    stop_secs: int = field(default=120, metadata={"minimum": 1, "unit": "seconds"})
    keep_secs: int | None = field(default=86400, metadata={"minimum": 60, "unit": "seconds"})


@dataclass(frozen=True)
class TakeConfig:
    """`ckpt.take`: what a run takes from the checkpoint of `ckpt.warm_start`."""

    # Patterns of variables of the model to take, such as «embedding*»; empty: all that the checkpoint has.
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()  # Patterns of variables of the model that start afresh.
    # Names in the checkpoint with their names in the model, as OLD:NEW; a name that ends with / is a scope.
    rename: tuple[str, ...] = ()
    # Tables whose rows are taken by the strings of a column with a vocabulary, as VARIABLE:COLUMN.
    rows: tuple[str, ...] = ()
    # Take the optimizer's slots and counters, too; false: the optimizer starts afresh.
    slots: bool = True


@dataclass(frozen=True)
class CkptConfig:
    """Group `ckpt`: when checkpoints are written, and which checkpoint a run starts from."""

    enabled: bool = MISSING
    dir: str | None = None
    save_steps: int | None = field(default=None, metadata={"minimum": 1, "unit": "steps"})
    save_secs: float | None = field(default=None, metadata={"above": 0, "unit": "seconds"})
    delta_steps: int | None = field(default=None, metadata={"minimum": 1, "unit": "steps"})
    keep: int | None = field(default=None, metadata={"minimum": 1, "unit": "checkpoints"})
    keep_bytes: int | None = field(default=None, metadata={"minimum": 1, "unit": "bytes"})
    copy_bytes: int | None = field(default=None, metadata={"minimum": 0, "unit": "bytes"})
    resume: str = "never"
    position: str = field(default="auto", metadata={"choices": ("auto", "keep", "start")})
    warm_start: str | None = None
    take: TakeConfig = field(default_factory=TakeConfig)

    @property
    def folder(self) -> str:
        """The value of `dir`, if checkpoints are enabled."""
        assert self.dir is not None
        return self.dir


@dataclass(frozen=True)
class ProfileConfig:
    """Group `profile`: the steps for which RunMetadata is recorded. `steps` and `range` are the settings of the choices
    with the same names."""

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
    options: dict[str, Any] = field(default_factory=dict)  # for trackers from other packages
    uri: str | None = None
    experiment: str | None = None
    run_name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    log_checkpoints: str = field(default="none", metadata={"choices": ("last", "best", "all", "none")})


@dataclass(frozen=True)
class SweepConfig:
    """Settings for all jobs of a sweep."""

    fail_fast: bool = MISSING
    # Number of best jobs to combine into one model that averages their predictions, in the sweep's folder.
    ensemble: int | None = field(default=None, metadata={"minimum": 2, "unit": "jobs"})
    # Give each concurrent job its own GPU.
    device_per_job: bool = False
    dir: str | None = None


@dataclass(frozen=True)
class ReadConfig:
    """What action=evaluate and action=predict read."""

    part: str = field(default="validation", metadata={"choices": ("validation", "train", "test")})


@dataclass(frozen=True)
class PredictConfig:
    """What action=predict writes."""

    format: str = field(default="parquet", metadata={"choices": ("parquet", "csv")})


@dataclass(frozen=True)
class SimulateConfig:
    """The cluster to simulate with action=simulate, in addition to cluster.workers."""

    bandwidth_gbit_per_sec: float | None = field(default=None, metadata={"above": 0, "unit": "Gbit/s"})
    latency_us: float | None = field(default=None, metadata={"minimum": 0, "unit": "µs"})
    workers_per_host: int = field(default=1, metadata={"minimum": 1, "unit": "workers"})
    profile: str | None = None


@dataclass(frozen=True)
class RunConfig:
    """The whole configuration. `model`, `data` and `optimizer` contain `_target_` and its arguments, as in their
    files."""

    action: str = field(default=MISSING, metadata={"names": tuple(BUILT_IN)})
    run_dir: str = MISSING
    redirect_path: str | None = None
    export_graph_path: str | None = None
    model_name: str = MISSING
    sweep: SweepConfig = field(default_factory=SweepConfig)
    read: ReadConfig = field(default_factory=ReadConfig)
    predict: PredictConfig = field(default_factory=PredictConfig)
    simulate: SimulateConfig = field(default_factory=SimulateConfig)
    data: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    comm: CommConfig = field(default_factory=CommConfig)
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    ckpt: CkptConfig = field(default_factory=CkptConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    # The values that depend on environment variables, by their paths (environment.py). This is not a key.
    from_environment: Mapping[tuple[str | int, ...], Any] = field(
        default_factory=dict, compare=False, metadata={"is_key": False}
    )


def keys_of(schema: Any) -> "list[dataclasses.Field[Any]]":
    """Returns the fields of a dataclass of the configuration that are keys."""
    return [entry for entry in dataclasses.fields(schema) if entry.metadata.get("is_key", True)]


FREE_GROUPS = ("data", "optimizer", "model")
