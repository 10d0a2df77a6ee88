"""Determines where a run starts: finds the checkpoint to resume from, and writes the files that the workers need."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from parallax_runner.config import frozen
from parallax_runner.config.actions import action_of
from parallax_runner.config.keras_files import is_keras_file
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset, numbering_of
from parallax_runner.data.identity import EXAMPLES_OF_DRIVER, Contents, examples_of, is_exact
from parallax_runner.data.identity import FILE_NAME as IDENTITY
from parallax_runner.driver import delta_source, keras_source, recovery, tensorflow_source
from parallax_runner.driver.data_position import settled_position
from parallax_runner.process.stage_times import stage
from parallax_runner.shipment.shipment_folder import folder_of

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph
    from parallax_runner.shipment.shipment import Shipment

log = logging.getLogger(__name__)
KEEP = "keep"  # the value of ckpt.position for a run that reads no training data


@stage("find a checkpoint")
def with_start(
    config: RunConfig, single: SingleDeviceGraph, dataset: Dataset, identity: Contents, run_dir: Path
) -> RunConfig:
    """Returns the configuration with `ckpt.resume` resolved to a checkpoint prefix or `never`. If it is a prefix,
    `ckpt.position` is `start` only if the run begins at its first example.

    Raises CheckpointError if the checkpoint does not fit the model or the data.
    """
    model, profile, ckpt, start = config.model, config.profile, config.ckpt, None
    if frozen.is_of_script(config):
        model = {**model, "first_process": str(run_dir)}
    if profile.dir is not None:
        profile = dataclasses.replace(profile, dir=str(Path(profile.dir).resolve()))
    if action_of(config).searches_only:  # the result is a chosen number of shards, not a trained model
        ckpt = dataclasses.replace(ckpt, enabled=False)
    if ckpt.enabled:
        ckpt = dataclasses.replace(ckpt, dir=os.path.realpath(ckpt.folder))
        start = _found(config, Path(ckpt.folder), single, run_dir)
    if start is not None:
        from parallax_runner.checkpoints.checkpoint_ops import AFRESH, ANOTHER, check_fits

        goes_on = action_of(config).goes_on_training
        numbering = numbering_of(dataset)
        check_fits(start, single.variables, numbering=numbering, remedy=AFRESH if goes_on else ANOTHER)
        position = settled_position(config, start, identity) if goes_on else KEEP
        ckpt = dataclasses.replace(ckpt, position=position)
        log.info("resuming from %s", start)
    resume = "never" if start is None else os.path.join(os.path.realpath(start.parent), start.name)
    ckpt = dataclasses.replace(ckpt, resume=resume)
    settled = dataclasses.replace(config, run_dir=str(run_dir), model=model, profile=profile, ckpt=ckpt)
    action_of(settled).check_start(settled, recovery.step_of(settled))
    return settled


def _found(config: RunConfig, folder: Path, single: SingleDeviceGraph, run_dir: Path) -> Path | None:
    """Returns the checkpoint from which the run starts, or None. `folder` is the run's own folder of checkpoints, which
    a run that goes on training prepares. Reports what is wrong in it. A file of Keras, a checkpoint of plain
    TensorFlow, and a checkpoint with a delta become a checkpoint in `run_dir`."""
    from parallax_runner.checkpoints.best import fault_of_best
    from parallax_runner.checkpoints.checkpoint_files import sidecar_path
    from parallax_runner.checkpoints.delta_start import find_state
    from parallax_runner.checkpoints.publish import prepare
    from parallax_runner.checkpoints.start import find_start

    if is_keras_file(config.ckpt.resume):
        return keras_source.checkpoint_of(Path(config.ckpt.resume), single, run_dir)
    if action_of(config).goes_on_training:
        notes, delta = prepare(folder), None
        found = find_start(config.ckpt.resume, folder)
    else:
        notes = ()
        found, delta = find_state(config.ckpt.resume, folder)
    # `prepare` and `find_start` both clean up the folder, and both report the files that they cannot remove.
    for note in filter(None, dict.fromkeys((*notes, *found.notes, fault_of_best(folder)))):
        log.warning("%s", note)
        print(f"parallax_runner: {note}", file=sys.stderr)
    if found.prefix is not None and not sidecar_path(found.prefix).exists():
        return tensorflow_source.checkpoint_of(found.prefix, single, run_dir)
    if found.prefix is not None and delta is not None:
        return delta_source.checkpoint_of(found.prefix, delta, run_dir)
    return found.prefix


def leave_for_workers(
    config: RunConfig, shipment: Shipment, identity: Contents, run_dir: Path, data_folder: Path | None
) -> None:
    """Writes the graph and the data for the workers, and what they need to make a part again and to compare it. The
    data goes to `data_folder` if it is not None."""
    from parallax_runner.graph import fingerprint, generators

    shipment.write(run_dir, data_folder)
    fingerprint.Outline.of(shipment.single.meta_graph.graph_def).save(run_dir / fingerprint.FILE_NAME)
    identity.save(run_dir / IDENTITY)
    if shipment.data_stays is not None and not is_exact(config):
        examples_of(shipment.dataset).save(folder_of(run_dir) / EXAMPLES_OF_DRIVER)
    if frozen.is_of_script(config):
        generators.begin.save(run_dir / generators.FILE_NAME)
