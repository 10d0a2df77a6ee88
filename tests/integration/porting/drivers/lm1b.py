"""A language model: LSTM with projection, sampled softmax, fed words and states, a partitioner, an average of
weights."""

import numpy as np
import parallax
import tensorflow as tf
from parallax_config import FLAGS, build_config

VOCABULARY, EMBEDDING, UNITS, PROJECTION, SAMPLES = 200, 16, 24, 16, 20
BATCH, LENGTH = 16, 6


class LSTM(object):
    """The weights of one layer with a projection; a call with inputs and state returns output and state."""

    def __init__(self, inputs, units, projection):
        init = tf.uniform_unit_scaling_initializer()
        self.kernel = tf.get_variable("kernel", [inputs + projection, 4 * units], initializer=init)
        self.bias = tf.get_variable("bias", [4 * units], initializer=tf.zeros_initializer())
        self.project = tf.get_variable("project", [units, projection], initializer=init)

    def __call__(self, inputs, c, h):
        gates = tf.matmul(tf.concat([inputs, h], 1), self.kernel) + self.bias
        i, j, f, o = tf.split(gates, 4, axis=1)
        c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(j)
        h = tf.matmul(tf.sigmoid(o) * tf.tanh(c), self.project)
        return c, h


class Model(object):
    def __init__(self, partitions):
        self.x = tf.placeholder(tf.int32, [BATCH, LENGTH], name="x")
        self.y = tf.placeholder(tf.int32, [BATCH, LENGTH], name="y")
        self.w = tf.placeholder(tf.float32, [BATCH, LENGTH], name="w")
        self.c = tf.placeholder(tf.float32, [BATCH, UNITS], name="c")
        self.h = tf.placeholder(tf.float32, [BATCH, PROJECTION], name="h")
        self.global_step = tf.train.get_or_create_global_step()
        init = tf.uniform_unit_scaling_initializer()
        with tf.variable_scope("input", initializer=init, partitioner=parallax.get_partitioner(partitions)):
            embedding = tf.get_variable("embedding", [VOCABULARY, EMBEDDING])
        with tf.variable_scope("output", initializer=init, partitioner=parallax.get_partitioner(partitions)):
            softmax_w = tf.get_variable("softmax_w", [VOCABULARY, PROJECTION])
        softmax_b = tf.get_variable("softmax_b", [VOCABULARY], initializer=tf.zeros_initializer())
        inputs = tf.nn.dropout(tf.nn.embedding_lookup(embedding, self.x), keep_prob=0.9)
        with tf.variable_scope("lstm"):
            lstm = LSTM(EMBEDDING, UNITS, PROJECTION)
        c, h, outputs = self.c, self.h, []
        for step_inputs in tf.unstack(inputs, axis=1):
            c, h = lstm(step_inputs, c, h)
            outputs.append(h)
        self.final_c, self.final_h = c, h
        flat = tf.reshape(tf.stack(outputs, 1), [-1, PROJECTION])
        losses = tf.nn.sampled_softmax_loss(
            softmax_w, softmax_b, tf.reshape(self.y, [-1, 1]), flat, SAMPLES, VOCABULARY, partition_strategy="div"
        )
        losses = losses * tf.reshape(self.w, [-1])
        self.loss = tf.reduce_sum(losses) / tf.maximum(tf.reduce_sum(self.w), 1.0)
        tf.summary.scalar("loss", self.loss)

        embedding_vars, lstm_vars = tf.trainable_variables("input"), tf.trainable_variables("lstm")
        output_vars = tf.trainable_variables("output") + [softmax_b]
        gradients = tf.gradients(self.loss * LENGTH, embedding_vars + lstm_vars + output_vars)
        count = len(embedding_vars)
        embedding_grads = [
            tf.IndexedSlices(slices.values * BATCH, slices.indices, slices.dense_shape) for slices in gradients[:count]
        ]
        lstm_grads, output_grads = gradients[count : count + len(lstm_vars)], gradients[count + len(lstm_vars) :]
        clipped, self.norm = tf.clip_by_global_norm(lstm_grads, 10.0)
        tf.summary.scalar("lstm_norm", self.norm)
        optimizer = tf.train.AdagradOptimizer(0.2, initial_accumulator_value=1.0)
        pairs = zip(embedding_grads + clipped + output_grads, embedding_vars + lstm_vars + output_vars)
        train_op = optimizer.apply_gradients(pairs, global_step=self.global_step)
        averages = tf.train.ExponentialMovingAverage(decay=0.999)
        with tf.control_dependencies([train_op]):
            self.train_op = averages.apply(lstm_vars)
        self.summary = tf.summary.merge_all()


def batches(reader):
    """Yields (words, next words, weights) endlessly: each word is followed by one of a few."""
    draw = np.random.RandomState(reader)
    while True:
        words = np.zeros([BATCH, LENGTH + 1], np.int32)
        words[:, 0] = draw.zipf(1.5, BATCH) % 15
        for step in range(LENGTH):
            words[:, step + 1] = (words[:, step] * 3 + draw.randint(0, 2, BATCH)) % 15
        yield words[:, :-1], words[:, 1:], np.ones([BATCH, LENGTH], np.float32)


def main(_):
    graph = tf.Graph()
    with graph.as_default():
        model = Model(FLAGS.partitions)
    sess, num_workers, worker_id, num_replicas = parallax.parallel_run(
        graph, FLAGS.resource_info_file, sync=FLAGS.sync, parallax_config=build_config()
    )
    readers = [batches(worker_id * num_replicas + replica) for replica in range(num_replicas)]
    c = [np.zeros([BATCH, UNITS], np.float32)] * num_replicas
    h = [np.zeros([BATCH, PROJECTION], np.float32)] * num_replicas
    fetches = {
        "global_step": model.global_step,
        "loss": model.loss,
        "norm": model.norm,
        "summary": model.summary,
        "train_op": model.train_op,
        "c": model.final_c,
        "h": model.final_h,
    }
    for _ in range(FLAGS.max_steps):
        x, y, w = zip(*[next(reader) for reader in readers])
        feeds = {model.x: list(x), model.y: list(y), model.w: list(w), model.c: c, model.h: h}
        fetched = sess.run(fetches, feed_dict=feeds)
        c, h = fetched["c"], fetched["h"]
        tags = [value.tag for value in tf.Summary.FromString(fetched["summary"][0]).value]
        assert tags == ["loss", "lstm_norm"], tags
        assert len(fetched["loss"]) == num_replicas
        print("step %d loss %.6f" % (fetched["global_step"][0], np.mean(fetched["loss"])))


if __name__ == "__main__":
    tf.app.run()
