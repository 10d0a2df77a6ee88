"""An image benchmark: convolutions with batch normalization on synthetic images, momentum and weight decay."""

import numpy as np
import parallax
import tensorflow as tf
from parallax_config import FLAGS, build_config

BATCH, SIZE, CLASSES = 8, 16, 5


class Builder(object):
    """Adds layers, each on top of the previous one."""

    def __init__(self, images):
        self.top, self.count = images, 0

    def conv(self, channels, size, stride=1):
        self.count += 1
        with tf.variable_scope("conv%d" % self.count):
            self.top = tf.layers.conv2d(
                self.top,
                channels,
                size,
                strides=stride,
                padding="SAME",
                use_bias=False,
                kernel_initializer=tf.contrib.layers.xavier_initializer(seed=self.count),
            )
            self.top = tf.contrib.layers.batch_norm(self.top, decay=0.9, scale=True, is_training=True, fused=True)
            self.top = tf.nn.relu(self.top)

    def pool(self):
        self.top = tf.layers.max_pooling2d(self.top, 2, 2, padding="SAME")

    def residual(self, channels):
        before = self.top
        self.conv(channels, 3)
        self.top = self.top + before

    def affine(self, units):
        self.top = tf.layers.flatten(self.top)
        self.top = tf.layers.dense(
            self.top, units, kernel_initializer=tf.contrib.layers.xavier_initializer(seed=9), name="affine"
        )


def cached_inputs():
    """Returns images and labels that are drawn once and stay on the device."""
    draw = np.random.RandomState(1)
    images = tf.constant(draw.normal(127.0, 60.0, [BATCH, SIZE, SIZE, 3]), tf.float32)
    labels = tf.constant(draw.randint(0, CLASSES, BATCH), tf.int32)
    local = [tf.GraphKeys.LOCAL_VARIABLES]
    images = tf.Variable(images, trainable=False, collections=local, name="gpu_cached_images")
    labels = tf.Variable(labels, trainable=False, collections=local, name="gpu_cached_labels")
    return tf.identity(images) / 127.5 - 1.0, tf.identity(labels)


def build():
    global_step = tf.train.get_or_create_global_step()
    with tf.device("/gpu:0"):
        images, labels = cached_inputs()
        builder = Builder(images)
        builder.conv(8, 3, stride=2)
        builder.pool()
        builder.residual(8)
        builder.affine(CLASSES)
        with tf.name_scope("xentropy"):
            cross = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=builder.top, labels=labels)
            cross = tf.reduce_mean(cross)
        decay = tf.add_n([tf.nn.l2_loss(variable) for variable in tf.trainable_variables()])
        loss = cross + 4e-5 * decay
        top_1 = tf.reduce_sum(tf.cast(tf.nn.in_top_k(builder.top, labels, 1), tf.float32))
    rate = tf.train.piecewise_constant(global_step, [6], [0.05, 0.01])
    tf.summary.scalar("learning_rate", rate)
    tf.summary.scalar("total_loss", loss)
    optimizer = tf.train.MomentumOptimizer(rate, 0.9)
    pairs = optimizer.compute_gradients(loss, colocate_gradients_with_ops=True)
    apply_op = optimizer.apply_gradients(pairs, global_step=global_step)
    train_op = tf.group(apply_op, *tf.get_collection(tf.GraphKeys.UPDATE_OPS))
    return {
        "global_step": global_step,
        "loss": loss,
        "top_1": top_1,
        "summary": tf.summary.merge_all(),
        "train_op": train_op,
    }


def main(_):
    graph = tf.Graph()
    with graph.as_default():
        fetches = build()
    sess, num_workers, worker_id, num_replicas = parallax.parallel_run(
        graph, FLAGS.resource_info_file, sync=FLAGS.sync, parallax_config=build_config()
    )
    for _ in range(FLAGS.max_steps):
        fetched = sess.run(fetches)
        assert len(fetched["top_1"]) == num_replicas
        tags = [value.tag for value in tf.Summary.FromString(fetched["summary"][0]).value]
        assert tags == ["learning_rate", "total_loss"], tags
        print("step %d loss %.6f" % (fetched["global_step"][0], np.mean(fetched["loss"])))


if __name__ == "__main__":
    tf.app.run()
