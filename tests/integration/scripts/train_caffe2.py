"""A test script in the style of Caffe2: a small ResNet, trained by `Parallelize`; its shard is on its command line, as
JSON."""

import json
import sys
import types

import tensorflow.compat.v1 as tf

import parallax_runner as parallax
from models import resnet
from parallax_runner import data_parallel_model
from parallax_runner.data import images

ASKED = json.loads(sys.argv[1])
CLASSES, BATCH = 4, 4
tf.disable_v2_behavior()


def add_image_input(model):
    made = images.load(image_size=8, classes=CLASSES, noise=0.1, examples=64, validation_examples=0, seed=1)
    dataset = parallax.shard.shard(tf.data.Dataset.from_tensor_slices(made.train_batch(0, 64)))
    model.features = tf.data.make_one_shot_iterator(dataset.repeat().batch(BATCH, drop_remainder=True)).get_next()


def create_resnet_model_ops(model, loss_scale):
    statistics = []
    logits = resnet.run(model.features["image"], CLASSES, 4, 1, statistics)
    tf.get_collection_ref(tf.GraphKeys.UPDATE_OPS).extend(statistics)
    return [loss_scale * tf.reduce_mean(resnet.cross_entropy(logits, model.features["label"]))]


def add_optimizer(model):
    return tf.train.MomentumOptimizer(0.05, 0.9)


store = ASKED.get("store")
if store == "file":
    store = data_parallel_model.FileStoreHandlerCreate(path=ASKED["path"], prefix="run 1")
elif store == "redis":
    store = data_parallel_model.RedisStoreHandlerCreate(host="127.0.0.1", port=ASKED["port"], prefix="run 1")
rendezvous = None
if store is not None:
    shard = {"shard_id": ASKED["shard_id"], "num_shards": 2}
    rendezvous = {"kv_handler": store, **shard, "engine": "GLOO", "exit_nets": None}
model = types.SimpleNamespace()
data_parallel_model.Parallelize(
    model,
    input_builder_fun=add_image_input,
    forward_pass_builder_fun=create_resnet_model_ops,
    optimizer_builder_fun=add_optimizer,
    devices=[0] if rendezvous else [0, 1],
    rendezvous=rendezvous,
    optimize_gradient_memory=True,
    cpu_device=True,
    parallax_config=parallax.Config(run_dir=ASKED["run_dir"], tracking=False),
)
losses = [data_parallel_model.RunNet(model, 5) for _ in range(4)]
print("losses", json.dumps([model.shard_id, model.num_shards, *losses]))
