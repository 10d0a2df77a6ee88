"""Settings that contradict each other."""

from pathlib import Path

import pytest

from tests.single.config.in_process import answer
from tests.single.config.refused import refused, run, wrong_line

ELASTIC = "cluster=manual cluster.rendezvous=file:///shared/meet train.max_restarts=1"
CASES = {
    "an ensemble of models that nobody keeps": (
        "sweep.ensemble=2 tracking=off",
        "sweep.ensemble=2 (command line)",
        "it needs ckpt, tracking, and tracking.log_checkpoints=last, best or all",
    ),
    "one device for two workers": (
        "sweep.device_per_job=true comm=mpi",
        "sweep.device_per_job=true (command line)",
        "use comm=local or cluster.workers=1",
    ),
    "an Allgatherv without MPI": (
        "cluster=manual cluster.rendezvous=file:///shared/meet comm=mpi comm.mpi.use_allgatherv=true",
        "cluster.launcher=manual",
        "comm.mpi.use_allgatherv needs MPI, but this launcher's workers use Gloo; omit comm.mpi.use_allgatherv",
    ),
    "a smallest number above the largest": (
        f"{ELASTIC} cluster.min_workers=3 cluster.max_workers=2 cluster.workers=2",
        "cluster.min_workers=3 (command line)",
        "the smallest number of workers, 3, is larger than the largest number, 2",
    ),
    "a largest number below the only number": (
        f"{ELASTIC} cluster.max_workers=1",
        "cluster.max_workers=1 (command line)",
        "the smallest number of workers, 2, is larger than the largest number, 1",
    ),
    "a first number that is too large": (
        f"{ELASTIC} cluster.min_workers=1 cluster.max_workers=2 cluster.workers=3",
        "cluster.workers=3 (command line)",
        "the run begins with this number; expected a number from 1 to 2",
    ),
    "deltas of no checkpoint": (
        "ckpt.delta_steps=5 ckpt.save_secs=null",
        "ckpt.delta_steps=5 (command line)",
        "set ckpt.save_steps or ckpt.save_secs too",
    ),
    "deltas as rare as checkpoints": (
        "ckpt.delta_steps=5 ckpt.save_steps=5",
        "ckpt.delta_steps=5 (command line)",
        "expected less than ckpt.save_steps=5",
    ),
    "deltas of no common step": (
        "ckpt.delta_steps=5 comm=ps comm.sync=false",
        "ckpt.delta_steps=5 (command line)",
        "needs comm.sync=true",
    ),
    "deltas of a step without some workers": (
        "ckpt.delta_steps=5 comm=ps cluster.workers=3 comm.ps.backup_workers=1",
        "ckpt.delta_steps=5 (command line)",
        "needs comm.ps.backup_workers=0",
    ),
    "deltas of variables that are divided anew": (
        "ckpt.delta_steps=5 comm=hybrid partition=search",
        "ckpt.delta_steps=5 (command line)",
        "choose partition=fixed",
    ),
    "deltas of a script": (
        "model=script data=script model.path=train.py ckpt.delta_steps=5",
        "ckpt.delta_steps=5 (command line)",
        "a script may change variables outside of its steps",
    ),
    "another size without checkpoints": (f"{ELASTIC} cluster.min_workers=1 ckpt=off", "continues from checkpoints"),
    "another size without restarts": (
        f"{ELASTIC} cluster.min_workers=1 train.max_restarts=0",
        "train.max_restarts=0 (command line)",
        "expected at least 1",
    ),
    "spare workers that may be lost": (
        f"{ELASTIC} cluster.min_workers=1 comm=ps comm.ps.backup_workers=1",
        "comm.ps.backup_workers=1 (command line)",
        "no number of them can be spare",
    ),
    "trials with other numbers of workers": (
        f"{ELASTIC} cluster.min_workers=1 comm=hybrid partition=search",
        "partition=search (command line)",
        "trials cannot be compared",
    ),
    "the examples of a step that one worker has": (
        f"{ELASTIC} cluster.min_workers=1 comm=ps comm.sync=false",
        "train.on_resize=global",
        "a step has the examples of one worker; set train.on_resize=per_worker",
    ),
    "a rate for the same examples": (
        f"{ELASTIC} cluster.min_workers=1 train.scale_lr=linear",
        "train.scale_lr=linear (command line)",
        "this key needs train.on_resize=per_worker",
    ),
    "another rate without a rate": (
        f"{ELASTIC} cluster.min_workers=1 train.scale_lr=sqrt train.on_resize=per_worker ~optimizer.learning_rate",
        "this key needs a number in optimizer.learning_rate",
    ),
    "a script's batches for other numbers of workers": (
        f"{ELASTIC} cluster.min_workers=1 comm=ps model=script data=script model.path=train.py",
        "train.on_resize=global",
        "a script feeds its own batches, whose sizes stay the same; set train.on_resize=per_worker",
    ),
    "a worker's batch of the data of fit": (
        f"{ELASTIC} cluster.min_workers=1 comm=ps model=fit data=fit model.path=train.py model.epoch_steps=1 "
        "train.on_resize=per_worker",
        "train.on_resize=per_worker (command line)",
        "the data of fit has batches of its own, which all workers divide; set train.on_resize=global",
    ),
    "another size of this machine": (
        "cluster.min_workers=1 train.max_restarts=1",
        "cluster.min_workers=1 (command line)",
        "all processes run on this machine, so their number does not change; name other hosts in",
    ),
    "more workers than the hosts have": (
        "cluster=hosts cluster.resource_info=[localhost,far] cluster.min_workers=3 comm=mpi train.max_restarts=1",
        "cluster.min_workers=3 (command line)",
        "the smallest number of workers, 3, is larger than the largest number, 2",
    ),
    "native exchanges without MPI": (
        "cluster=manual cluster.rendezvous=file:///shared/meet comm=mpi comm.backend=native",
        "comm.backend=native (command line)",
        "cluster=manual uses no mpirun, which the native exchanges need; use comm.backend=horovod",
    ),
    "devices that are named already": (
        "sweep.device_per_job=true comm=local cluster.resource_info=[localhost]",
        "use cluster=local without resource_info",
    ),
    "an ensemble of plans": ("sweep.ensemble=2 action=plan", "sweep.ensemble=2", "use action=train"),
    "two ways to clip": (
        "update.clip_norm=1 update.clip_value=2",
        "update.clip_value=2 (command line)",
        "a gradient is clipped in one way, and update.clip_norm is set, too",
    ),
    "a decay without a length": (
        "update.schedule.decay=cosine",
        "update.schedule.decay_steps=null",
        "update.schedule.decay=cosine needs this key",
    ),
    "a factor that the decay does not use": (
        "update.schedule={decay:linear,decay_steps:9,decay_rate:0.5}",
        "update.schedule.decay_rate=0.5 (command line)",
        "update.schedule.decay=linear does not use this key; expected the decay exponential",
    ),
    "the end of no decay": (
        "update.schedule.end_fraction=0.1",
        "update.schedule.end_fraction=0.1 (command line)",
        "expected the decay linear or cosine",
    ),
    "exceptions from no decay": (
        "update.exclude_from_weight_decay=[bias]",
        "no variable decays; set update.weight_decay",
    ),
    "a schedule without a rate": (
        "update.schedule.warmup_steps=3 ~optimizer.learning_rate",
        "this key needs a number as optimizer.learning_rate",
    ),
    "search under auto": ("comm=auto partition=search", "partition=search", "comm=auto chooses routes itself"),
    "search without synchronization": (
        "comm=ps comm.sync=false partition=search",
        "partition=search (command line)",
        "with comm.sync=false no worker waits for the others",
        "choose partition=fixed",
    ),
    "search with backup workers": (
        "comm=ps comm.ps.backup_workers=1 action=search partition=search",
        "partition=search (command line)",
        "with comm.ps.backup_workers=1 no step waits for all workers",
    ),
    "search of a verification": (
        "action=verify partition=search",
        "partition=search (command line)",
        "action=verify compares the steps of one unchanged plan",
    ),
    "asynchrony under auto": (
        "comm=auto comm.sync=false",
        "comm.sync=false",
        "asynchronous training needs the servers of comm=ps",
    ),
    "launcher over no hosts": (
        "comm=ps cluster.launcher=hosts",
        "cluster.launcher=hosts (command line)",
        "cluster.resource_info names no other host; choose auto or local",
    ),
    "launcher of this machine over hosts": (
        "comm=ps cluster.launcher=local cluster.resource_info=[other.example] cluster.remote_shell=echo",
        "cluster.launcher=local (command line)",
        "cluster.resource_info names another host; choose auto or hosts",
    ),
    "script under auto": (
        "model=script data=script model.path=train.py comm=auto",
        "comm.name=auto",
        "a script feeds its own data",
    ),
    "script that skips": (
        "model=script data=script model.path=train.py train.on_nan=skip",
        "train.on_nan=skip (command line)",
        "a script defines its own steps",
    ),
    "script in several passes": (
        "model=script data=script model.path=train.py train.accumulate_steps=2",
        "train.accumulate_steps=2 (command line)",
        "accumulate gradients in the script",
    ),
    "fit in several passes": (
        "model=fit data=fit model.path=train.py model.epoch_steps=1 train.accumulate_steps=2",
        "train.accumulate_steps=2 (command line)",
        "set its argument gradient_accumulation_steps=2",
    ),
    "fit in bfloat16": (
        "model=fit data=fit model.path=train.py model.epoch_steps=1 train.mixed_precision=bfloat16",
        "train.mixed_precision=bfloat16 (command line)",
        'keras.mixed_precision.set_global_policy("mixed_bfloat16")',
    ),
    "bfloat16 verified": (
        "train.mixed_precision=bfloat16 action=verify",
        "train.mixed_precision=bfloat16 (command line)",
        "omit this key",
    ),
    "float16": (
        "train.mixed_precision=float16",
        "train.mixed_precision=float16 (command line)",
        "one of off, bfloat16",
    ),
    "sharded script": (
        "model=script data=script model.path=train.py comm=sharded",
        "a script may run ops on one worker",
    ),
    "async mpi": ("comm=mpi comm.sync=false", "comm.sync=false (command line)", "needs the servers of comm=ps"),
    "async hybrid": ("comm=hybrid comm.sync=false", "comm.sync=false (command line)", "needs the servers of comm=ps"),
    "async verify": (
        "comm=ps comm.sync=false action=verify",
        "comm.sync=false (command line)",
        "so a comparison is not possible",
    ),
    "async skip": (
        "comm=ps comm.sync=false train.on_nan=skip",
        "train.on_nan=skip (command line)",
        "which needs comm.sync=true",
    ),
    "backup of all": (
        "comm=ps cluster.workers=2 comm.ps.backup_workers=2",
        "comm.ps.backup_workers=2 (command line)",
        "expected less than cluster.workers=2",
    ),
    "backup of one": ("comm=ps cluster.workers=1 comm.ps.backup_workers=1", "less than cluster.workers=1"),
    "backup on listed hosts": (
        "comm=ps cluster.resource_info=[localhost:0] comm.ps.backup_workers=1",
        "expected less than cluster.workers=1",
    ),
    "backup of replicas": (
        "comm=ps cluster.replicas_per_worker=2 comm.ps.backup_workers=1",
        "comm.ps.backup_workers=1 (command line)",
        "with cluster.replicas_per_worker=2",
    ),
    "backup and copies": (
        "comm=ps cluster.workers=3 comm.ps.backup_workers=1 comm.ps.replicate_variables=true",
        "comm.ps.backup_workers=1 (command line)",
        "expected 0 with comm.ps.replicate_variables=true",
    ),
    "backup verify": ("comm=ps comm.ps.backup_workers=1 action=verify", "action=verify needs comm.ps.backup_workers=0"),
    "backup skip": (
        "comm=ps comm.ps.backup_workers=1 train.on_nan=skip",
        "train.on_nan=skip (command line)",
        "all workers must agree to skip a step, so comm.ps.backup_workers must be 0",
    ),
    "backup and validation": (
        "comm=ps comm.ps.backup_workers=1 train.validate_steps=5",
        "train.validate_steps=5 (command line)",
        "comm.ps.backup_workers allows validation only at the end",
    ),
    "no hosts": ("cluster=hosts", "cluster.resource_info=??? (", "conf/cluster/hosts.yaml:"),
    "hosts and a number": (
        "cluster.resource_info=[localhost] cluster.workers=2",
        "cluster.workers=2 (command line): cluster.resource_info",
    ),
    "no servers": ("comm=ps cluster.servers=0", "cluster.servers=0 (command line)", "needs at least 1 server"),
    "search of an action under sharded": (
        "comm=sharded action=search partition=search",
        "action=search (command line)",
        "comm=sharded has no servers, so no variable can be split",
    ),
    "mpirun's options": ("comm.mpi.mpirun_options=3", "comm.mpi.mpirun_options=3 (command line)", "a list of strings"),
    "a choice without rows": (
        "comm=auto comm.measure_rows=false",
        "comm.measure_rows=false (command line)",
        "comm=auto chooses routes by measured rows",
    ),
    "rows of a script": (
        "comm=hybrid comm.measure_rows=true model=script model.path=train.py",
        "comm.measure_rows=true (command line)",
        "a script feeds its own data",
    ),
    "search of an action without servers": (
        "comm=mpi action=search partition=search",
        "action=search (command line)",
        "comm=mpi has no servers",
        "comm=hybrid",
    ),
    "bounds of a search without effect": (
        "comm=mpi partition=search partition.min=4 partition.max=2",
        "partition.max=2 (command line)",
        "at least partition.min=4",
    ),
    "bounds of a search": (
        "partition=search partition.min=4 partition.max=2",
        "partition.max=2 (command line)",
        "at least partition.min=4",
    ),
    "search from nowhere": ("partition=search partition.min=null", "partition.min=null (command line)", "an integer"),
    "trial of one step": (
        "partition=search partition.steps_per_trial=1",
        "partition.steps_per_trial=1 (command line)",
        "at least 2",
    ),
    "action without its search": ("action=search", "action=search (command line)", "add partition=search"),
    "profile of no step": ("profile=steps profile.steps=[]", "profile.steps=[] (command line)", "at least one step"),
    "profile without steps": ("profile=steps", "profile.steps=??? (", "conf/profile/steps.yaml:", "at least one step"),
    "profile of a step too many": (
        "profile=steps profile.steps=[5,201]",
        "profile.steps=[5, 201] (command line)",
        "from 1 to train.steps=200, but found 201",
    ),
    "profile of a step too many, without effect": (
        "action=plan profile=steps profile.steps=[5,201]",
        "profile.steps=[5, 201] (command line)",
        "from 1 to train.steps=200, but found 201",
    ),
    "profile of step 0": ("profile=steps profile.steps=[0]", "profile.steps=[0] (command line)", "but found 0"),
    "profile of a word": (
        "profile=steps profile.steps=[a]",
        "profile.steps=['a'] (command line)",
        "expected a list of integers",
    ),
    "empty range": (
        "profile=range profile.range=[5,5]",
        "profile.range=[5, 5] (command line)",
        "Did you mean profile.range=[5,6]?",
    ),
    "half a range": (
        "profile=range profile.range=[5]",
        "profile.range=[5] (command line)",
        "the step after the last one",
    ),
    "range beyond the end": (
        "profile=range profile.range=[195,202]",
        "profile.range=[195, 202] (command line)",
        "bounds from 1 to 201",
    ),
    "range before the start": (
        "profile=range profile.range=[0,2]",
        "profile.range=[0, 2] (command line)",
        "bounds from 1",
    ),
    "profile of no worker": (
        "profile=steps profile.steps=[1] profile.worker=2",
        "profile.worker=2 (command line)",
        "at most 1",
    ),
    "profile of a second worker alone": (
        "comm=local profile=steps profile.steps=[1] profile.worker=1",
        "profile.worker=1 (command line)",
        "at most 0",
    ),
    "profile without a folder": (
        "profile=steps profile.steps=[1] profile.dir=null",
        "profile.dir=null (command line)",
        "expected a folder",
    ),
    "profile of no worker of the hosts": (
        "cluster.resource_info=[localhost:0] profile=steps profile.steps=[1] profile.worker=1",
        "profile.worker=1 (command line)",
        "at most 0",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_combination(name: str, tmp_path: Path) -> None:
    wrong_line(CASES[name], tmp_path)


@pytest.mark.parametrize("name", ["search from nowhere"])
def test_wrong_combination_as_a_user_types_it(name: str, tmp_path: Path) -> None:
    wrong_line(CASES[name], tmp_path, respond=run)


def test_no_gpu_to_share_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    message = refused(answer("sweep.device_per_job=true", "comm=local", cwd=tmp_path))
    assert message.startswith("sweep.device_per_job=true (command line): ")
    assert "this machine has no GPUs that jobs can use; omit this key" in message
