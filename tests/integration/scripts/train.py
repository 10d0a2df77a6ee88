"""A test script: a lookup times dense weights; its settings are on its command line, as JSON."""

import json
import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import parallax_runner as parallax

ASKED = {"run_dir": "out", "steps": 4, "partitioner": 0, "config": {}, "overrides": []} | json.loads(sys.argv[1])
ASKED = {"resources": ["localhost: 0,1"]} | ASKED
LEARNING_RATE = 0.1
# Each replica has its own rows, and one that it shares with others.
IDS = [[0, 1, 2, 2], [2, 3, 4, 5]]

tf.disable_v2_behavior()


class StopAndSee(tf.train.SessionRunHook):
    """Prints the loss from the hook's own fetch, and stops after some steps."""

    def __init__(self, steps: int) -> None:
        self.steps, self.seen = steps, 0

    def before_run(self, context):
        return tf.train.SessionRunArgs({"loss": "loss:0"})

    def after_run(self, context, values):
        self.seen += 1
        print(f"hook {self.seen} {values.results['loss']:.6f}")
        if self.seen == self.steps:
            context.request_stop()

    def end(self, session):
        print(f"hook ends at {session.run('global_step:0')}")


def build():
    graph = tf.Graph()
    with graph.as_default(), tf.device(ASKED.get("scope")):
        ids = tf.placeholder(tf.int32, [4], name="ids")
        partitioner = parallax.get_partitioner(ASKED["partitioner"]) if ASKED["partitioner"] else None
        with tf.variable_scope("embedding", partitioner=partitioner):
            table = tf.get_variable("table", [6, 2], tf.float64, initializer=tf.ones_initializer())
        weights = tf.get_variable("weights", [2], tf.float64, initializer=tf.ones_initializer())
        step = tf.train.get_or_create_global_step()
        rows = tf.nn.embedding_lookup(table, ids)
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(rows * weights, axis=1) - 3.0), name="loss")
        rate = tf.placeholder(tf.float32, [], name="rate") if ASKED.get("rates") else LEARNING_RATE
        optimizer = tf.train.GradientDescentOptimizer(rate)
        pairs = optimizer.compute_gradients(loss)
        gradients, norm = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 1e6)
        tf.identity(norm, name="norm")
        tf.summary.merge([tf.summary.scalar("clipped_norm", tf.global_norm(gradients))], name="clipped")
        variables = [variable for _, variable in pairs]
        optimizer.apply_gradients(zip(gradients, variables, strict=True), global_step=step, name="train")
        if ASKED.get("critic"):
            critic = tf.get_variable("critic", [2], tf.float64, initializer=tf.ones_initializer())
            other = tf.reduce_sum(critic * tf.cast(ids[:2], tf.float64))
            optimizer.minimize(other, var_list=[critic], name="train_critic")
        summary = tf.summary.scalar("loss", loss)
        if "pretrained" in ASKED:
            tf.train.init_from_checkpoint(ASKED["pretrained"], {"theirs/table": "embedding/table"})
        tf.group(tf.global_variables_initializer(), name="start")
    return graph, summary


if "paddle" in ASKED:
    parallax.paddle.init(**ASKED["paddle"])
graph, summary = build()
config = parallax.Config()
config.run_dir = ASKED["run_dir"]
config.tracking = False
config.overrides = ASKED["overrides"]
config.ckpt_config = parallax.CheckPointConfig(**ASKED["config"].pop("ckpt", {}))
config.profile_config = parallax.ProfileConfig(**ASKED["config"].pop("profile", {}))
ps = parallax.PSConfig(**ASKED["config"].pop("ps", {}))
mpi = parallax.MPIConfig(**ASKED["config"].pop("mpi", {}))
config.communication_config = parallax.CommunicationConfig(ps, mpi)
if "cpus" in ASKED:
    config.sess_config = tf.ConfigProto(device_count={"CPU": ASKED["cpus"]})
if "hook" in ASKED:
    with graph.as_default():
        config.hooks = [StopAndSee(ASKED["hook"])]
        config.chief_only_hooks = [tf.train.SummarySaverHook(1, output_dir="summaries", summary_op=summary)]
for name, value in ASKED["config"].items():
    setattr(config, name, value)
session, workers, worker, replicas = parallax.parallel_run(
    graph, ASKED["resources"], sync=ASKED.get("sync", True), parallax_config=config
)
print(f"worker {worker} of {workers}, {replicas} replica(s), {len(session.tf_session.list_devices())} devices")
print("environment", os.environ.get("FROM_OPTIONS"))
feeds = [IDS[(worker * replicas + replica) % 2] for replica in range(replicas)]
# Fed, because hooks have their own fetches.
session.run("start", {"ids:0": feeds})
for number in range(ASKED["steps"]):
    if session.should_stop() or ASKED.get("ends") == [worker, number]:
        break
    fed = {"rate:0": [ASKED["rates"][worker]] * replicas} if ASKED.get("rates") else {}
    fetched = session.run(["train", {"loss": "loss:0"}, ("norm:0",)], {"ids:0": feeds, **fed})
    assert fetched[0] == [None] * replicas and len(fetched[1]["loss"]) == replicas
    if ASKED.get("watches"):
        step, clipped, norms = session.run(["train", "clipped/clipped:0", "norm:0"], {"ids:0": feeds, **fed})
        (value,) = tf.Summary.FromString(clipped[0]).value
        print(f"clipped {value.simple_value:.6f} {norms[0]:.6f}")
    if ASKED.get("critic"):
        session.run("train_critic", {"ids:0": feeds})
    if ASKED.get("fails") == worker and number == 1:
        raise RuntimeError("broken on purpose")
    if ASKED.get("exits") == worker and number == 1:
        sys.exit(7)
values = session.run(["weights:0", "embedding/table:0", "global_step"], {"ids:0": feeds})
print("values", json.dumps([np.asarray(value[0]).tolist() for value in values]))
