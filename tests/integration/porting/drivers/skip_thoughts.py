"""Sentence vectors: an encoder, decoders of the previous and the next sentence; records through TensorFlow 1's
queues."""

import os

import numpy as np
import parallax
import tensorflow as tf
from parallax_config import FLAGS, build_config

VOCABULARY, EMBEDDING, UNITS, BATCH, FILES, PER_FILE = 50, 12, 16, 4, 4, 8
SENTENCES = ["encode", "decode_pre", "decode_post"]


def write_records(folder):
    """Writes the data if it is not there yet: each example has three sentences, each with a few of the words."""
    if tf.gfile.Exists(folder):
        return
    tf.gfile.MakeDirs(folder)
    draw = np.random.RandomState(0)
    for number in range(FILES):
        with tf.python_io.TFRecordWriter(os.path.join(folder, "train-%d" % number)) as writer:
            for _ in range(PER_FILE):
                first, features = draw.randint(2, VOCABULARY - 20), {}
                for name in SENTENCES:
                    ids = first + draw.randint(0, 4, draw.randint(3, 8))
                    features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=ids))
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())


def prefetch(reader, files, num_shards, shard_id):
    """Returns a queue of serialized examples that threads fill from this replica's files."""
    own = tf.strided_slice(files, [shard_id], [len(files)], [num_shards])
    names = tf.train.string_input_producer(own, shuffle=False, capacity=16, name="filename_queue")
    queue = tf.RandomShuffleQueue(
        capacity=3 * PER_FILE, min_after_dequeue=PER_FILE, dtypes=[tf.string], shapes=[[]], name="input_queue"
    )
    enqueues = []
    for _ in range(2):
        _, value = reader.read(names)
        enqueues.append(queue.enqueue([value]))
    tf.train.queue_runner.add_queue_runner(tf.train.queue_runner.QueueRunner(queue, enqueues))
    filled = tf.cast(queue.size(), tf.float32) / (3 * PER_FILE)
    tf.summary.scalar("fraction_of_input_queue_full", filled)
    return queue


def parse(serialized):
    """Returns (ids, mask) for each of the three sentences."""
    features = tf.parse_example(serialized, features={name: tf.VarLenFeature(tf.int64) for name in SENTENCES})

    def dense(sparse):
        ids = tf.sparse_tensor_to_dense(sparse)
        mask = tf.sparse_to_dense(sparse.indices, sparse.dense_shape, tf.ones_like(sparse.values, dtype=tf.int32))
        return ids, mask

    return [dense(features[name]) for name in SENTENCES]


class Model(object):
    def __init__(self, batch):
        self.init = tf.random_uniform_initializer(-0.1, 0.1)
        (ids, mask), before, behind = batch
        with tf.variable_scope("words", partitioner=parallax.get_partitioner(FLAGS.partitions)):
            self.embedding = tf.get_variable("word_embedding", [VOCABULARY, EMBEDDING], initializer=self.init)
        cell = tf.nn.rnn_cell.GRUCell(UNITS // 2)
        back_cell = tf.nn.rnn_cell.GRUCell(UNITS // 2)
        with tf.variable_scope("encoder", initializer=self.init):
            _, states = tf.nn.bidirectional_dynamic_rnn(
                cell_fw=cell,
                cell_bw=back_cell,
                inputs=tf.nn.embedding_lookup(self.embedding, ids),
                sequence_length=tf.reduce_sum(mask, 1),
                dtype=tf.float32,
            )
            self.thought_vectors = tf.concat(states, 1, name="thought_vectors")
        self.decode("decoder_pre", *before, reuse=False)
        self.decode("decoder_post", *behind, reuse=True)
        self.total_loss = tf.losses.get_total_loss()
        tf.summary.scalar("losses/total", self.total_loss)

    def decode(self, name, ids, mask, reuse):
        """Adds the loss of one decoder, which sees the words before each word that it predicts."""
        cell = tf.nn.rnn_cell.GRUCell(UNITS)
        inputs = tf.pad(tf.nn.embedding_lookup(self.embedding, ids)[:, :-1, :], [[0, 0], [1, 0], [0, 0]])
        with tf.variable_scope(name, initializer=self.init) as scope:
            outputs, _ = tf.nn.dynamic_rnn(
                cell,
                inputs,
                sequence_length=tf.reduce_sum(mask, 1),
                initial_state=self.thought_vectors,
                scope=scope,
            )
        with tf.variable_scope("logits", reuse=reuse, initializer=self.init) as scope:
            logits = tf.contrib.layers.fully_connected(
                tf.reshape(outputs, [-1, UNITS]),
                VOCABULARY,
                activation_fn=None,
                weights_initializer=tf.contrib.layers.xavier_initializer(),
                scope=scope,
            )
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.reshape(ids, [-1]), logits=logits)
        loss = tf.reduce_sum(losses * tf.to_float(tf.reshape(mask, [-1])))
        tf.summary.scalar("losses/" + name, loss)
        tf.losses.add_loss(loss / BATCH)


def build():
    num_shards, shard_id = parallax.shard.create_num_shards_and_shard_id()
    files = sorted(tf.gfile.Glob(os.path.join(FLAGS.data_dir, "train-*")))
    queue = prefetch(tf.TFRecordReader(), files, tf.to_int32(num_shards), tf.to_int32(shard_id))
    model = Model(parse(queue.dequeue_many(BATCH)))
    global_step = tf.train.get_or_create_global_step()
    train_op = tf.contrib.layers.optimize_loss(
        loss=model.total_loss,
        global_step=global_step,
        learning_rate=0.05,
        learning_rate_decay_fn=lambda rate, step: tf.train.exponential_decay(rate, step, 4, 0.9, staircase=True),
        optimizer="Adam",
        clip_gradients=5.0,
        summaries=["learning_rate", "loss", "global_gradient_norm"],
    )
    return {
        "global_step": global_step,
        "loss": model.total_loss,
        "thoughts": model.thought_vectors,
        "summary": tf.summary.merge_all(),
        "train_op": train_op,
    }


def main(_):
    write_records(FLAGS.data_dir)
    graph = tf.Graph()
    with graph.as_default():
        fetches = build()
    sess, num_workers, worker_id, num_replicas = parallax.parallel_run(
        graph, FLAGS.resource_info_file, sync=FLAGS.sync, parallax_config=build_config()
    )
    for _ in range(FLAGS.max_steps):
        fetched = sess.run(fetches)
        assert [thoughts.shape for thoughts in fetched["thoughts"]] == [(BATCH, UNITS)] * num_replicas
        tags = [value.tag for value in tf.Summary.FromString(fetched["summary"][0]).value]
        assert any(tag.endswith("global_gradient_norm") for tag in tags), tags
        print("step %d loss %.6f" % (fetched["global_step"][0], np.mean(fetched["loss"])))


if __name__ == "__main__":
    tf.app.run()
