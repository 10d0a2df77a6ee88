"""The example of the old module's page: its own lines, except for the imports and lines marked «added».

The page's placeholders have no dtype, which TensorFlow never accepted, its variables are not initialized, and it does
not define a rank's batch.
"""

# added: numpy, and compat.v1 for tensorflow
import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner import mpi_collectives as mpi

# added: graph mode, and the same initial values on all ranks, since gradients are all that is exchanged
tf.disable_v2_behavior()
tf.set_random_seed(1)


# added
def construct_batch_for_rank(rank):
    draw = np.random.default_rng(rank)
    inputs = draw.normal(size=(8, 20))
    return inputs, inputs.sum(axis=1, keepdims=True) + 0.1 * draw.normal(size=(8, 1))


# Construct a simple linear regression model to optimize
W = tf.get_variable("W", shape=[20, 1], dtype=tf.float32)
B = tf.get_variable("B", shape=[1, 1], dtype=tf.float32)
inputs = tf.placeholder(tf.float32, name="Inputs", shape=[None, 20])  # the page: tf.placeholder("Inputs", shape=…)
outputs = tf.placeholder(tf.float32, name="Outputs", shape=[None, 1])
loss = tf.nn.l2_loss(tf.matmul(inputs, W) + B - outputs)

# Training using MPI allreduce with DistributedOptimizer
optimizer = mpi.DistributedOptimizer(tf.train.AdamOptimizer())
train = optimizer.minimize(loss)

# Average loss over all ranks, for printing.
# Do not pass this to an optimizer!
avg_loss = mpi.allreduce(loss)

# On different ranks, feed different input data.
with mpi.Session() as session:
    rank = session.run(mpi.rank())
    batch_inputs, batch_outputs = construct_batch_for_rank(rank)
    feed_dict = {inputs: batch_inputs, outputs: batch_outputs}
    # added: initial values, and ten steps for one
    session.run(tf.global_variables_initializer())
    initial = session.run([W, B])
    losses = []
    for _ in range(10):
        _, l = session.run([train, avg_loss], feed_dict=feed_dict)  # noqa: E741
        print("Average Loss:", l)
        losses.append(l)
    final = session.run([W, B])
