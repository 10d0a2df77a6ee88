"""What a wrong command line is answered with: the actual command, one message, exit status 2."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.single.config.in_process import answer


def run(*arguments: str, cwd: Path, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, "-m", "parallax_runner", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)


def refused(result: subprocess.CompletedProcess[str]) -> str:
    """The one message of a refused command line."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("parallax_runner: "), result.stderr
    assert "use +" not in lines[0]
    return lines[0].removeprefix("parallax_runner: ")


COMMAND_LINES = {
    "choice": (
        "comm=hybird",
        "comm=hybird (command line)",
        "auto, hybrid, local, mpi, ps, sharded",
        "Did you mean comm=hybrid?",
    ),
    "later choice": (
        "comm=gossip",
        "comm=gossip (command line)",
        "expected one of auto, hybrid, local, mpi, ps, sharded",
    ),
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
    "devices that are named already": (
        "sweep.device_per_job=true comm=local cluster.resource_info=[localhost]",
        "use cluster=local without resource_info",
    ),
    "an ensemble of plans": ("sweep.ensemble=2 action=plan", "sweep.ensemble=2", "use action=train"),
    "an ensemble of one": ("sweep.ensemble=1", "sweep.ensemble=1", "at least 2"),
    "profile that is not there": (
        "action=simulate simulate.profile=nowhere.json",
        "simulate.profile=nowhere.json (command line)",
        "no such file",
    ),
    "links of no width": (
        "action=simulate simulate.bandwidth_gbit_per_sec=0",
        "simulate.bandwidth_gbit_per_sec=0",
        "greater than 0",
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
    "unknown launcher": (
        "comm=ps cluster.launcher=locall",
        "cluster.launcher=locall (command line)",
        "expected one of auto, local, hosts, slurm, manual, or a class such as package.module.Class",
        "Did you mean cluster.launcher=local?",
    ),
    "launcher that is not there": (
        "comm=ps cluster.launcher=nowhere.Mine",
        "cluster.launcher=nowhere.Mine (command line)",
        "nowhere.Mine cannot be imported: ModuleNotFoundError: No module named 'nowhere'",
    ),
    "launcher of another kind": (
        "comm=ps cluster.launcher=pathlib.Path",
        "cluster.launcher=pathlib.Path (command line)",
        "expected a class that extends parallax_runner.launch.launchers.launcher.Launcher",
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
    "choice in capitals": ("model=LM", "model=LM (command line)", "Did you mean model=lm?"),
    "choice by another name": ("optimizer=SGD", "Did you mean optimizer=gradient_descent?"),
    "choice that looks like another": ("comm=allreduce", "Did you mean comm=mpi?"),
    "data of another kind": (
        "data=csv",
        "data=csv (command line)",
        "No choice reads these files; write FOLDER/data/mine.yaml",
        "--config-dir FOLDER data=mine",
    ),
    "key by another name": ("optimizer.lr=0.1", "Did you mean optimizer.learning_rate=0.1?"),
    "key by another name in a group without it": ("train.lr=0.1", "Did you mean optimizer.learning_rate=0.1?"),
    "key by another name alone": ("num_workers=3", "Did you mean cluster.workers=3?"),
    "key that Hydra has deep down": ("output_dir=x", "Did you mean run_dir=x?"),
    "added key by another name alone": ("+lr=3", "lr=3 (command line)", "Did you mean optimizer.learning_rate=3?"),
    "added key by another name in a group without it": ("+train.lr=3", "Did you mean optimizer.learning_rate=3?"),
    "added key without its group": ("+learning_rate=3", "Did you mean optimizer.learning_rate=3?"),
    "forced key without its group": ("++steps=5", "steps=5 (command line)", "Did you mean train.steps=5?"),
    "added key of a misspelt group": ("+trian.steps=5", "trian.steps=5 (command line)", "Did you mean train.steps=5?"),
    "added key beside the right one": ("++train.steps=4 +steps=5", "steps=5 (command", "Did you mean train.steps=5?"),
    "added key beside another added key": ("+optimizer.lr=2 +lr=3", "Did you mean optimizer.learning_rate=3?"),
    "key in capitals": ("train.Steps=5", "Did you mean train.steps=5?"),
    "setting with dashes": (
        "--train.steps 100",
        "--train.steps 100 (command line): write settings as key=value, without dashes.",
        "Did you mean train.steps=100?",
    ),
    "setting with dashes and an equals sign": ("--train.step=100 comm=mpi", "Did you mean train.steps=100?"),
    "setting with dashes by its last name": ("comm=mpi --workers 4", "Did you mean cluster.workers=4?"),
    "setting with a dash that begins as a flag": ("-comm.sync=false", "Did you mean comm.sync=false?"),
    "flag": ("--multirn comm=mpi", "--multirn (command line): there is no such flag. Did you mean --multirun?"),
    "no flag": ("--no-such-flag", "--no-such-flag (command line): there is no such flag. Write settings as"),
    "value of a flag": ("--cfg jib", "argument --cfg/-c: invalid choice: 'jib'"),
    "flags together": ("--info --cfg job", "only one of --run, --multirun, --cfg"),
    "number for a choice": ("comm=3", "comm=3 (command line)", "expected one of"),
    "several choices": ("comm=[mpi,ps]", "comm=[mpi,ps] (command line)", "expected one of"),
    "no choice": ("comm=null", "comm=null (command line)", "expected one of"),
    "experiment": ("experiment=quik", "expected one of", "Did you mean experiment=quick?"),
    "group": ("com=mpi", "com=mpi (command line)", "Did you mean comm=mpi?"),
    "added group": ("+comm=mpi", "+comm=mpi (command line)", "Did you mean comm=mpi?"),
    "package": ("comm@foo=mpi", "comm@foo=mpi (command line)", "Did you mean comm=mpi?"),
    "key": ("train.step=5", "train.step=5 (command line)", "Did you mean train.steps=5?"),
    "key without its group": ("steps=5", "steps=5 (command line)", "Did you mean train.steps=5?"),
    "key of a misspelt group": ("trian.steps=5", "trian.steps=5 (command line)", "Did you mean train.steps=5?"),
    "key below a value": ("train.steps.x=5", "train.steps.x=5 (command line)", "Did you mean train.steps=5?"),
    "key below null": ("tracking.run_name.x=5", "tracking.run_name.x=5 (command line)", "unknown key"),
    "added key": ("+train.foo=1", "train.foo=1 (command line)", "train has steps, seed, log_every"),
    "key of a mapping": ("train={step: 5}", "train.step=5 (command line)", "Did you mean train.steps=5?"),
    "key of the model": (
        "model.keep_prop=0.5",
        "model.keep_prop=0.5 (command line)",
        "Did you mean model.keep_prob=0.5?",
    ),
    "key of the data": ("data.bach_size=5", "data.bach_size=5 (command line)", "Did you mean data.batch_size=5?"),
    "key of Hydra": ("hydra.run.dri=x", "hydra.run.dri=x (command line)", "Did you mean hydra.run.dir=x?"),
    "launcher": ("hydra/launcher=baisc", "hydra/launcher=baisc (command line)", "Did you mean hydra/launcher=basic?"),
    "removed": ("~train.steps", "~train.steps (command line)", "cannot be removed"),
    "tracker": (
        "tracking.tracker=mlfow",
        "tracking.tracker=mlfow (command line): expected one of mlflow, or a class such as package.module.Class",
        "Did you mean tracking.tracker=mlflow?",
    ),
    "tracker of no module": (
        "tracking.tracker=no_such.Tracker",
        "tracking.tracker=no_such.Tracker (command line)",
        "no_such.Tracker cannot be imported: ModuleNotFoundError: No module named 'no_such'",
    ),
    "tracker of no class": ("tracking.tracker=json.Tracker", "module 'json' has no attribute 'Tracker'"),
    "tracker that is none": (
        "tracking.tracker=collections.Counter",
        "tracking.tracker=collections.Counter (command line)",
        "expected a class that extends parallax_runner.track.tracker.Tracker",
    ),
    "tag": ("tracking.tags.team=x", "Did you mean +tracking.tags.team=x?"),
    "type": ("train.steps=abc", "train.steps=abc (command line)", "expected an integer, at least 1"),
    "fraction": ("train.steps=1.5", "train.steps=1.5 (command line)", "expected an integer"),
    "not true or false": ("comm.sync=maybe", "comm.sync=maybe (command line)", "expected true or false"),
    "type of the model's": ("model.keep_prob=abc", "model.keep_prob=abc (command line)", "expected a number"),
    "type of a reference to a list": (
        "model=dlrm_keras model.cardinalities=5",
        "model.cardinalities=5 (command line)",
        "expected a list, such as the default [100, 100",
    ),
    "negative": ("train.steps=-5", "train.steps=-5 (command line)", "expected an integer, at least 1"),
    "no workers": ("cluster.workers=0", "cluster.workers=0 (command line)", "at least 1"),
    "no time": ("ckpt.save_secs=0", "ckpt.save_secs=0 (command line)", "expected a number, greater than 0, or null"),
    "negative rate": (
        "optimizer.learning_rate=-0.1",
        "optimizer.learning_rate=-0.1 (command line)",
        "expected a finite number, at least 0",
    ),
    "negative rate of a model": (
        "model=two_tower model.learning_rate=-1",
        "model.learning_rate=-1 (command line)",
        "at least 0",
    ),
    "negative first rate": ("+optimizer.initial_learning_rate=-1", "optimizer.initial_learning_rate=-1", "at least 0"),
    "negative rate of a schedule": (
        "+optimizer.schedule={_target_:a.b,end_learning_rate:-1}",
        "optimizer.schedule.end_learning_rate=-1 (command line)",
        "at least 0",
    ),
    "rate that is no number": ("optimizer.learning_rate=nan", "optimizer.learning_rate=nan", "expected a finite"),
    "infinite rate": ("optimizer.learning_rate=inf", "optimizer.learning_rate=inf", "expected a finite"),
    "negative rate in a sweep": ("-m optimizer.learning_rate=0,-1", "job 1", "optimizer.learning_rate=-1"),
    "batch": ("data.batch_size=0", "data.batch_size=0 (command line)", "expected an integer, at least 1"),
    "no batch": ("data.batch_size=null", "data.batch_size=null (command line)", "expected an integer, at least 1"),
    "action": ("action=trian", "action=trian (command line)", "expected one of train, plan, verify"),
    "hot rows": (
        "comm=sharded comm.hot_rows=64",
        "comm.hot_rows=64 (command line)",
        "this key was removed because copies of hot rows did not make steps faster; omit it",
    ),
    "lookahead of earlier versions": (
        "comm=sharded comm.lookahead=1",
        "comm.lookahead=1 (command line)",
        "expected one of auto, off, on; on replaces 1 and requests only rows of other ranks in advance.",
    ),
    "lookahead of two steps": ("comm.lookahead=2", "comm.lookahead=2 (command line)", "expected one of auto, off, on."),
    "a choice that YAML reads as a truth value": (
        "comm.compression=false",
        "comm.compression=false (command line)",
        "expected one of off, fp16, bf16; put on and off in quotes in a file, where YAML reads them as true and false",
    ),
    "a route that is not there": (
        "comm=hybrid comm.routes.sparse=alltoal",
        "comm.routes.sparse=alltoal (command line)",
        "no such route; expected one of local, allreduce, allgather, ps, alltoall. "
        "Did you mean comm.routes.sparse=alltoall?",
    ),
    "a kind of gradient that is not there": (
        "comm=hybrid +comm.routes.dens=ps",
        "comm.routes.dens=ps (command line)",
        "unknown key; comm.routes has dense, sparse",
        "Did you mean comm.routes.dense=ps?",
    ),
    "a route where the cost model chooses": (
        "comm=auto comm.routes.dense=ps",
        "comm.routes.dense=ps (command line)",
        "comm.routes is null under this choice of comm, so no key below it can be set; choose another comm",
    ),
    "routes of another choice": (
        "comm=hybrid comm.routes.sparse=alltoall",
        "comm.name=hybrid",
        "choose comm=hybrid, or set another comm.name",
    ),
    "the name of another choice": ("comm=hybrid comm.name=mpi", "comm.name=mpi (command line)", "choose comm=mpi"),
    "a name of no choice": (
        "comm=local comm.name=mine",
        "comm.name=mine (command line)",
        "the choice comm=local sets this key",
    ),
    "the name of another cut": (
        "partition.name=fixed",
        "partition.name=fixed (command line)",
        "the choice partition=off sets this key",
        "Did you mean partition=fixed?",
    ),
    "routes for auto": ("comm=hybrid comm.name=auto", "comm.routes", "comm=auto chooses a route for each variable"),
    "no routes": ("comm=auto comm.name=mine", "comm.name=mine", "or a new name with comm.routes"),
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
    "backup of a few": ("comm=ps comm.ps.backup_workers=-1", "comm.ps.backup_workers=-1 (command line)", "at least 0"),
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
    "no bound": ("comm=ps comm.sync=false comm.ps.staleness=0", "comm.ps.staleness=0 (command line)", "at least 1"),
    "no hosts": ("cluster=hosts", "cluster.resource_info=??? (", "conf/cluster/hosts.yaml:"),
    "no such hosts": ("cluster.resource_info=nowhere.txt", "nowhere.txt: cannot read the hosts of the run"),
    "hosts and a number": (
        "cluster.resource_info=[localhost] cluster.workers=2",
        "cluster.workers=2 (command line): cluster.resource_info",
    ),
    "memory": ("cluster.gpu_memory_fraction=2", "cluster.gpu_memory_fraction=2 (command line)", "at most 1"),
    "no servers": ("comm=ps cluster.servers=0", "cluster.servers=0 (command line)", "needs at least 1 server"),
    "logs in a file": (
        "redirect_path=/etc/passwd",
        "redirect_path=/etc/passwd (command line)",
        "/etc/passwd is a file",
    ),
    "graphs in a file": (
        "export_graph_path=/etc/passwd",
        "export_graph_path=/etc/passwd (command line)",
        "/etc/passwd is a file",
    ),
    "home": ("ckpt.dir='~/ckpt'", "ckpt.dir=~/ckpt (command line)", f"write {os.path.expanduser('~')}/ckpt"),
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
    "profile in a file": (
        "profile=steps profile.steps=[1] profile.dir=/dev/null",
        "profile.dir=/dev/null (command line)",
        "is a file",
    ),
    "profile of no worker of the hosts": (
        "cluster.resource_info=[localhost:0] profile=steps profile.steps=[1] profile.worker=1",
        "profile.worker=1 (command line)",
        "at most 0",
    ),
    "checkpoints of a sweep in one folder": (
        "-m comm=mpi,ps ckpt.dir=x",
        "job 1",
        "ckpt.dir=x (command line)",
        "its own folder",
    ),
    "checkpoints of a study in one folder": (
        "-m hydra/sweeper=optuna comm=choice(mpi,ps) ckpt.dir=x",
        "ckpt.dir=x (command line)",
        "its own folder",
    ),
    "checkpoints without a folder": ("ckpt.dir=null", "ckpt.dir=null (command line)", "expected a folder"),
    "profiles of a sweep in one folder": (
        "-m comm=mpi,ps profile=steps profile.steps=[1] profile.dir=x",
        "job 1",
        "profile.dir=x (command line)",
        "its own folder",
    ),
    "resume": ("ckpt.resume=/no/such", "ckpt.resume=/no/such (command line)", "expected auto, never, or a path"),
    "no path": ("data=text", "data.path=??? (", "conf/data/text.yaml:", "data.path=VALUE"),
    "wrong path": ("data=text data.path=/no/such", "data.path=/no/such (command line)", "no such file or folder"),
    "empty folder": ("data=text data.path=empty", "data.path=empty (command line)", "this folder contains no files"),
    "syntax": ("train.steps==", "train.steps== (command line)", "expected key=value"),
    "no value": ("train.steps", "train.steps (command line)", "expected key=value"),
    "no key": ("=5", "=5 (command line)", "expected key=value"),
    "unquoted behind an address": ("tracking.uri=https://a/#/", "'#', which must be quoted"),
    "number for a path": ("data=text data.path=2024", "data.path=2024 (command line)", "data.path=\"'2024'\""),
    "negative seed": ("data.seed=-1", "data.seed=-1 (command line)", "at least 0"),
    "unquoted": ("data.path=~/text", "data.path=~/text (command line)", "'~', which must be quoted"),
    "unclosed": ("train.steps='5", "train.steps='5 (command line)", "a string that is not closed"),
    "sweep of an unknown size": (
        "-m train.steps=interval(1,3)",
        "train.steps=interval(1,3) (command line)",
        "expanded",
    ),
    "nothing near": ("model.foo=4", "model.foo=4 (command line): unknown key; model has _target_, vocab_size"),
    "reference": ("train.seed=${foo.bar}", "train.seed=${foo.bar} (command line)", "'foo.bar' not found"),
    "circle": ("train.seed=${train.seed}", "train.seed=${train.seed} (command line)", "Recursive"),
    "reference of a wrong type": ("train.seed=${comm.name}", "train.seed=${comm.name} (command line)", "to Integer"),
    "environment": ("train.seed=${oc.env:NO_SUCH}", "train.seed=${oc.env:NO_SUCH} (command line)", "'NO_SUCH'"),
    "referenced value": ("train.steps=${train.seed} train.seed=0", "train.steps=${train.seed} [0] (command line)"),
    "sweep without -m": ("comm=mpi,ps", "comm=mpi,ps (command line)", "-m (--multirun)"),
    "sweep over Hydra": ("-m hydra.run.dir=a,b", "hydra.run.dir=a,b (command line)", "a sweep cannot vary"),
    "job of a sweep": ("-m train.steps=5,0", "job 1 (train.steps=0): train.steps=0 (command line)"),
    "combination in a sweep": ("-m comm=ps,mpi comm.sync=false", "comm.sync=false (command line)", "job 1 (comm=mpi"),
    "shared folder": ("-m run_dir=x train.seed=1,2", "run_dir=x (command line)", "its own folder"),
    "shared logs": ("-m redirect_path=x train.seed=1,2", "redirect_path=x (command line)", "its own folder"),
    "shared graphs": ("-m export_graph_path=x train.seed=1,2", "export_graph_path=x (command", "its own folder"),
    "sweep over an empty range": ("-m train.seed=range(5,5)", "train.seed=range(5,5): the sweep has no values"),
    "sweep over no choice": ("-m optimizer=glob(addm*)", "optimizer=glob(addm*): the sweep has no values"),
    "choice in a sweep": ("-m comm=mpi,pss", "comm=pss (command line)", "Did you mean comm=ps?"),
    "folder": ("--config-dir /no/such", "--config-dir=/no/such (command line)"),
    "searched folder": ("hydra.searchpath=[file:///no/such]", "hydra.searchpath=file:///no/such (command line)"),
    "searched text": ("hydra.searchpath=own", "hydra.searchpath=own (command line): expected a list of folders"),
    "file": ("--config-name nosuch", "--config-name=nosuch (command line)"),
    "shown": ("--cfg job train.step=5", "train.step=5 (command line)", "Did you mean train.steps=5?"),
}


# These run as the command that a user types; the others show in this process what it would answer.
AS_PROCESSES = frozenset(
    {"choice", "key", "type", "unquoted", "folder", "shown", "combination in a sweep", "search from nowhere"}
)


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_wrong_command_line(name: str, tmp_path: Path) -> None:
    respond = run if name in AS_PROCESSES else answer
    (tmp_path / "empty").mkdir()
    line, *fragments = COMMAND_LINES[name]
    assert fragments
    arguments = [line] if "{" in line and "${" not in line else line.split(" ")
    message = refused(respond(*arguments, cwd=tmp_path))
    for fragment in fragments:
        assert fragment in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty"], "nothing has started"


OWN_FILES = {
    "type": ("train:\n  seed: 2\n  steps: abc\n", "train.steps=abc (own/experiment/mine.yaml:4): expected an integer"),
    "range": ("train: {steps: -3}\n", "train.steps=-3 (own/experiment/mine.yaml:2): expected an integer, at least 1"),
    "key": ("train:\n  stepz: 5\n", "train.stepz=5 (own/experiment/mine.yaml:3)", "Did you mean train.steps=5?"),
    "key of the model": (
        "model:\n  keep_prop: 0.5\n",
        "(own/experiment/mine.yaml:3)",
        "Did you mean model.keep_prob=0.5?",
    ),
    "type of the model's": ("model:\n  keep_prob: abc\n", "model.keep_prob=abc (own/experiment/mine.yaml:3)"),
    "group": ("trian:\n  steps: 4\n", "(own/experiment/mine.yaml:2)", "Did you mean train?"),
    "choice": (
        "defaults:\n  - override /comm: hybird\n",
        "comm=hybird (own/experiment/mine.yaml:3)",
        "Did you mean comm=hybrid?",
    ),
    "group of a choice": (
        "defaults:\n  - override /com: mpi\n",
        "com=mpi (own/experiment/mine.yaml:3)",
        "Did you mean comm?",
    ),
    "combination": (
        "defaults:\n  - override /comm: mpi\ncomm:\n  sync: false\n",
        "comm.sync=false (own/experiment/mine.yaml:5): asynchronous training needs the servers of comm=ps",
    ),
    "reference": ("train:\n  seed: ${no.such}\n", "train.seed=${no.such} (own/experiment/mine.yaml:3)"),
    "not YAML": ("train: {steps:\n  - : x\n", "own/experiment/mine.yaml:3: invalid YAML"),
}


@pytest.mark.parametrize("name", OWN_FILES)
def test_wrong_file(name: str, tmp_path: Path) -> None:
    content, *fragments = OWN_FILES[name]
    assert fragments
    folder = tmp_path / "own" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("# @package _global_\n" + content)
    message = refused(answer("--config-dir", "own", "experiment=mine", cwd=tmp_path))
    for fragment in fragments:
        assert fragment in message


def test_wrong_file_of_the_search_path(tmp_path: Path) -> None:
    folder = tmp_path / "own" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("# @package _global_\ntrain:\n  step: 5\n")
    message = refused(answer(f"hydra.searchpath=[file://{tmp_path}/own]", "experiment=mine", cwd=tmp_path))
    assert "train.step=5 (own/experiment/mine.yaml:3)" in message
    (folder / "mine.yaml").write_text("# @package _global_\ntrain:\n  steps: 17\n")
    shown = run("--cfg", "job", f"hydra.searchpath=[{tmp_path}/own]", "experiment=mine", cwd=tmp_path)
    assert shown.returncode == 0 and "steps: 17" in shown.stdout


def test_unreadable_folder_names_the_origin(tmp_path: Path) -> None:
    folder = tmp_path / "own" / "data"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("_target_: x.load\nbatch_size: 2\npath: /no/such\nvocab_size: 9\n")
    message = refused(answer("--config-dir", "own", "data=mine", cwd=tmp_path))
    assert message.startswith("data.path=/no/such (own/data/mine.yaml:3): no such file or folder")


def test_flags_that_exclude_each_other(tmp_path: Path) -> None:
    for arguments in (["--info", "--cfg", "job"], ["--resolve"], ["--no-such-flag"]):
        result = run(*arguments, cwd=tmp_path)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [("train.step=5",), ("--cfg", "job", "--resolve")])
def test_without_heavy_imports(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """A refusal, or what is shown of the configuration, does not wait for TensorFlow (4 s) or MLflow (1.2 s)."""
    result = run(*arguments, cwd=tmp_path, python=("-X", "importtime"))
    imported = set(re.findall(r"\| +(\w+)$", result.stderr, flags=re.MULTILINE))
    assert "hydra" in imported
    assert not imported & {"tensorflow", "mlflow", "horovod", "keras"}


def test_each_name_of_a_process_is_a_case() -> None:
    assert set(COMMAND_LINES) >= AS_PROCESSES


def test_no_gpu_to_share_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    message = refused(answer("sweep.device_per_job=true", "comm=local", cwd=tmp_path))
    assert message.startswith("sweep.device_per_job=true (command line): ")
    assert "this machine has no GPUs that jobs can use; omit this key" in message
