"""A script of TensorFlow 1 and the original Parallax; tests upgrade and run it, and docs/porting.md shows it."""

import sys

import numpy as np
import parallax
import tensorflow as tf

tf.disable_v2_behavior()

ROWS, SIZE, LENGTH, BATCH = 20, 4, 3, 2


def build_graph():
    graph = tf.Graph()
    with graph.as_default():
        dataset = parallax.shard.shard(tf.data.Dataset.range(4 * BATCH)).repeat().batch(BATCH, drop_remainder=True)
        numbers = tf.cast(dataset.make_one_shot_iterator().get_next(), tf.int32)
        words = tf.mod(tf.expand_dims(numbers, 1) + tf.range(LENGTH), ROWS, name="words")
        with tf.variable_scope("embedding", partitioner=parallax.get_partitioner(2)):
            table = tf.get_variable("table", [ROWS, SIZE], initializer=tf.random_uniform_initializer(-1, 1, seed=1))
        kernel = tf.get_variable("kernel", [SIZE, SIZE], initializer=tf.contrib.layers.xavier_initializer())
        target = tf.constant(np.random.uniform(0.3, 0.7, [SIZE]), tf.float32)
        inputs = tf.transpose(tf.nn.embedding_lookup(table, words), [1, 0, 2])

        def step(time, state):
            return time + 1, tf.tanh(tf.matmul(state, kernel) + inputs[time])

        _, state = tf.while_loop(lambda time, _: time < LENGTH, step, [0, tf.zeros([BATCH, SIZE])])
        loss = tf.reduce_mean(tf.square(state - target), name="loss")
        global_step = tf.train.get_or_create_global_step()
        optimizer = tf.train.AdagradOptimizer(0.5)
        gradients, variables = zip(*optimizer.compute_gradients(loss))
        clipped, _ = tf.clip_by_global_norm(gradients, 1.0)
        train_op = optimizer.apply_gradients(zip(clipped, variables), global_step=global_step)
    return graph, words, loss, global_step, train_op


graph, words, loss, global_step, train_op = build_graph()
config = parallax.Config()
config.run_option = "HYBRID"
config.ckpt_config = parallax.CheckPointConfig(ckpt_dir=sys.argv[2], save_ckpt_steps=10)
sess, num_workers, worker_id, num_replicas_per_worker = parallax.parallel_run(
    graph, sys.argv[1], sync=True, parallax_config=config
)
print("draws", np.random.randint(1 << 30))
for _ in range(20):
    losses, seen, steps, _ = sess.run([loss, words, global_step, train_op])
    print("worker %d of %d: loss %.4f, words from %s" % (worker_id, num_workers, losses[0], seen[0][:, 0].tolist()))
