"""Sources of layers of random Keras models: own layers, and those that write variables."""

from __future__ import annotations

POWER_ITERATION = '''
class PowerIteration(layers.Layer):
    """A dense layer divided by an estimate of its kernel's largest singular value."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 3), initializer=start({seed}), name="kernel")
        self.u = {u}
        KEPT.append(self.u)

    def call(self, x):
        def refine(_, count):
            towards = tf.linalg.matvec(self.kernel, self.u, transpose_a=True)
            self.u.assign(tf.math.l2_normalize(tf.linalg.matvec(self.kernel, towards)))
            return count + 1.0

        {loop}
        u = tf.stop_gradient(tf.convert_to_tensor(self.u))
        largest = tf.norm(tf.linalg.matvec(self.kernel, u, transpose_a=True))
        return keras.ops.matmul(x, self.kernel) / largest
'''
LOOPS = (
    "keras.ops.fori_loop(0, 3, refine, tf.constant(0.0, tf.float64))",
    "tf.while_loop(lambda n: n < 3.0, lambda n: (refine(0, n),), [tf.constant(0.0, tf.float64)])",
)
# A variable of TensorFlow is trainable unless its creator says otherwise.
VECTORS = (
    'tf.Variable(np.ones({width}), name="u")',
    'tf.Variable(np.ones({width}), name="u")',
    'tf.Variable(np.ones({width}), trainable=False, name="u")',
)
HALVING = '''
class Halving(layers.Layer):
    """Multiplies by a factor. Every second step lowers it first."""

    def build(self, shape):
        self.factor = {factor}
        self.calls = tf.Variable(0, trainable=False, name="calls")
        KEPT.extend([self.factor, self.calls])

    def call(self, x):
        def lowered():
            self.factor.assign(0.5 * self.factor + 0.25)
            return 1.0 * self.factor

        self.calls.assign_add(1)
        factor = keras.ops.cond(self.calls % 2 == 0, lowered, lambda: 1.0 * self.factor)
        return x * tf.stop_gradient(factor)
'''
FACTORS = (
    'tf.Variable(np.array([2.0]), name="factor")',
    'tf.Variable(np.array([2.0]), name="factor")',
    'tf.Variable(np.array([2.0]), trainable=False, name="factor")',
)
TIED = '''
class Tied(layers.Layer):
    """Compares with all rows of a table that another layer looks up."""

    def __init__(self, table):
        super().__init__(name="tied")
        self.table = table

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(self.table.embeddings))
'''
COUNTED = '''
class Counted(layers.Layer):
    """Counts its calls in a variable of another dtype, and keeps an average of its weight."""

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[-1:], initializer=start({seed}), name="scale")
        self.average = self.add_weight(shape=shape[-1:], initializer="zeros", trainable=False, name="average")
        self.calls = self.add_weight(shape=(), dtype="{dtype}", initializer="zeros", trainable=False, name="calls")

    def call(self, x):
        self.calls.assign_add(keras.ops.cast(1, self.calls.dtype))
        self.average.assign(0.9 * self.average + 0.1 * self.scale)
        return x * self.scale + 0.1 * self.average
'''
ADDED = '''
class Added(layers.Layer):
    """Adds a {what} to the loss."""

    def call(self, x{more}):
        self.add_loss({loss})
        return x
'''
