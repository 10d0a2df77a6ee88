"""Limits a process's use of this machine's GPUs, through the session's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from tensorflow.core.protobuf.config_pb2 import ConfigProto, GPUOptions


@dataclass(frozen=True)
class GpuLimits:
    """The GPUs that a process uses, and their memory.

    `visible` contains the ids of the GPUs, in the order in which TensorFlow numbers them. `visible` is empty if the
    process uses no GPU. `memory_fraction` (more than 0, at most 1) is the fraction of each GPU's memory that is
    allocated at startup. None leaves the choice to TensorFlow. With `allow_growth`, memory is allocated as needed.
    """

    visible: tuple[int, ...] = ()
    memory_fraction: float | None = None
    allow_growth: bool = False

    def options(self) -> GPUOptions:
        """Returns the limits in the form that the configuration of a session or a server contains."""
        return GPUOptions(
            visible_device_list=",".join(map(str, self.visible)),
            allow_growth=self.allow_growth,
            per_process_gpu_memory_fraction=self.memory_fraction,
        )


def hide_gpus(config: ConfigProto) -> None:
    """Hides all GPUs from a process that computes only on the CPU. Otherwise, the process would take GPU memory that
    workers need."""
    config.device_count["GPU"] = 0
