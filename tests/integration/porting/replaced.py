"""Features that the drivers use and TensorFlow 2.21 has removed: cells, layers, tables, decoders, under the same names.

They work like the originals as far as the drivers need it, with variables of the same names and shapes.
"""

from __future__ import annotations

import collections

import tensorflow as upgraded
import tensorflow.compat.v1 as tf
from tensorflow.python.training.moving_averages import assign_moving_average

# --- tf.nn.rnn_cell, tf.contrib.rnn ---------------------------------------------------------------------------------

LSTMStateTuple = collections.namedtuple("LSTMStateTuple", ["c", "h"])
nest = upgraded.nest


class Cell:
    """The interface that `tf.nn.dynamic_rnn` expects. The variables of a cell are created at its first call."""

    name = "cell"

    def __init__(self):
        self._scope = None

    def __call__(self, inputs, state, scope=None):
        if self._scope is None:
            with tf.variable_scope(None, default_name=self.name) as self._scope:
                return self.call(inputs, state)
        with tf.variable_scope(self._scope, reuse=True):
            return self.call(inputs, state)

    def zero_state(self, batch_size, dtype):
        return nest.map_structure(lambda size: tf.zeros([batch_size, size], dtype), self.state_size)

    def get_initial_state(self, inputs=None, batch_size=None, dtype=None):
        return self.zero_state(tf.shape(inputs)[0] if batch_size is None else batch_size, dtype)


class GRUCell(Cell):
    name = "gru_cell"

    def __init__(self, num_units):
        super().__init__()
        self.state_size = self.output_size = num_units

    def call(self, inputs, state):
        gates = _linear("gates", [inputs, state], 2 * self.output_size, 1.0)
        reset, update = tf.split(tf.sigmoid(gates), 2, axis=1)
        new = tf.tanh(_linear("candidate", [inputs, reset * state], self.output_size, 0.0))
        output = update * state + (1 - update) * new
        return output, output


class BasicLSTMCell(Cell):
    name = "basic_lstm_cell"

    def __init__(self, num_units, forget_bias=1.0):
        super().__init__()
        self.output_size, self._forget_bias = num_units, forget_bias
        self.state_size = LSTMStateTuple(num_units, num_units)

    def call(self, inputs, state):
        gates = _linear(None, [inputs, state[1]], 4 * self.output_size, 0.0)
        i, j, f, o = tf.split(gates, 4, axis=1)
        c = tf.sigmoid(f + self._forget_bias) * state[0] + tf.sigmoid(i) * tf.tanh(j)
        h = tf.sigmoid(o) * tf.tanh(c)
        return h, LSTMStateTuple(c, h)


class MultiRNNCell(Cell):
    name = "multi_rnn_cell"

    def __init__(self, cells):
        super().__init__()
        self._cells = cells
        self.state_size, self.output_size = tuple(cell.state_size for cell in cells), cells[-1].output_size

    def call(self, inputs, state):
        states = []
        for cell, one in zip(self._cells, state, strict=True):
            inputs, new = cell(inputs, one)
            states.append(new)
        return inputs, tuple(states)


class Wrapper:
    """A cell that wraps another one."""

    def __init__(self, cell):
        self._cell = cell

    def __getattr__(self, name):
        return getattr(self._cell, name)

    def __call__(self, inputs, state, scope=None):
        return self._cell(inputs, state)


class DeviceWrapper(Wrapper):
    def __init__(self, cell, device):
        super().__init__(cell)
        self._device = device

    def __call__(self, inputs, state, scope=None):
        with tf.device(self._device):
            return self._cell(inputs, state)


class ResidualWrapper(Wrapper):
    def __call__(self, inputs, state, scope=None):
        outputs, state = self._cell(inputs, state)
        return inputs + outputs, state


def _linear(scope, inputs, units, bias):
    whole = tf.concat(inputs, 1)
    with tf.variable_scope(scope) if scope else tf.name_scope("linear"):
        kernel = tf.get_variable("kernel", [whole.shape[-1], units])
        return tf.matmul(whole, kernel) + tf.get_variable("bias", [units], initializer=tf.constant_initializer(bias))


# --- tf.layers, tf.contrib.layers -----------------------------------------------------------------------------------


class Dense:
    def __init__(self, units, use_bias=True, kernel_initializer=None, name="dense"):
        self._units, self._use_bias, self._init = units, use_bias, kernel_initializer
        with tf.variable_scope(name) as self._scope:
            self._kernel = self._bias = None

    def __call__(self, inputs):
        if self._kernel is None:
            # Outside the scope of the caller, which may be that of a loop.
            with tf.variable_scope(self._scope), tf.init_scope():
                self._kernel = tf.get_variable("kernel", [inputs.shape[-1], self._units], initializer=self._init)
                if self._use_bias:
                    self._bias = tf.get_variable("bias", [self._units], initializer=tf.zeros_initializer())
        outputs = tf.tensordot(inputs, self._kernel, 1)
        return outputs if self._bias is None else outputs + self._bias


def dense(inputs, units, kernel_initializer=None, name="dense"):
    return Dense(units, kernel_initializer=kernel_initializer, name=name)(inputs)


def flatten(inputs):
    return tf.reshape(inputs, [-1, inputs.shape[1:].num_elements()])


def conv2d(inputs, filters, kernel_size, strides=1, padding="VALID", use_bias=True, kernel_initializer=None):
    with tf.variable_scope("conv2d"):
        shape = [kernel_size, kernel_size, inputs.shape[-1], filters]
        outputs = tf.nn.conv2d(
            inputs, tf.get_variable("kernel", shape, initializer=kernel_initializer), strides=strides, padding=padding
        )
        if use_bias:
            outputs += tf.get_variable("bias", [filters], initializer=tf.zeros_initializer())
        return outputs


def max_pooling2d(inputs, pool_size, strides, padding="VALID"):
    return tf.nn.max_pool2d(inputs, pool_size, strides, padding)


def batch_norm(inputs, decay=0.999, scale=False, epsilon=0.001, is_training=True, fused=True):
    size = inputs.shape[-1:]
    with tf.variable_scope("BatchNorm"):
        beta = tf.get_variable("beta", size, initializer=tf.zeros_initializer())
        gamma = tf.get_variable("gamma", size, initializer=tf.ones_initializer()) if scale else tf.ones(size)
        moving = [
            tf.get_variable(name, size, initializer=init, trainable=False)
            for name, init in [("moving_mean", tf.zeros_initializer()), ("moving_variance", tf.ones_initializer())]
        ]
        if not is_training:
            return tf.nn.batch_normalization(inputs, moving[0], moving[1], beta, gamma, epsilon)
        outputs, *moments = tf.nn.fused_batch_norm(inputs, gamma, beta, epsilon=epsilon)
        for variable, moment in zip(moving, moments, strict=True):
            update = assign_moving_average(variable, moment, decay, zero_debias=False)
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
        return outputs


def fully_connected(inputs, num_outputs, activation_fn=tf.nn.relu, weights_initializer=None, scope=None):
    with tf.variable_scope(scope or "fully_connected"):
        weights = tf.get_variable("weights", [inputs.shape[-1], num_outputs], initializer=weights_initializer)
        outputs = tf.matmul(inputs, weights)
        outputs += tf.get_variable("biases", [num_outputs], initializer=tf.zeros_initializer())
        return outputs if activation_fn is None else activation_fn(outputs)


def optimize_loss(
    loss, global_step, learning_rate, optimizer, clip_gradients=None, learning_rate_decay_fn=None, summaries=()
):
    with tf.variable_scope("OptimizeLoss"):
        rate = learning_rate_decay_fn(tf.convert_to_tensor(learning_rate), global_step)
        made = {"Adam": tf.train.AdamOptimizer, "SGD": tf.train.GradientDescentOptimizer}[optimizer](rate)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            loss = tf.identity(loss)
        gradients, variables = zip(*made.compute_gradients(loss), strict=True)
        clipped, norm = tf.clip_by_global_norm(gradients, clip_gradients)
        for name, value in [("learning_rate", rate), ("loss", loss), ("global_gradient_norm", norm)]:
            if name in summaries:
                tf.summary.scalar(name, value)
        update = made.apply_gradients(zip(clipped, variables, strict=True), global_step=global_step, name="train")
        with tf.control_dependencies([update]):
            return tf.identity(loss)


# --- tf.contrib.lookup ----------------------------------------------------------------------------------------------


def index_table_from_file(vocabulary_file, default_value=-1):
    words, lines = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
    entries = tf.lookup.TextFileInitializer(vocabulary_file, tf.string, words, tf.int64, lines)
    return tf.lookup.StaticHashTable(entries, default_value)


def index_to_string_table_from_file(vocabulary_file, default_value="UNK"):
    words, lines = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
    entries = tf.lookup.TextFileInitializer(vocabulary_file, tf.int64, lines, tf.string, words)
    return tf.lookup.StaticHashTable(entries, default_value)


# --- tf.contrib.seq2seq ---------------------------------------------------------------------------------------------

BasicDecoderOutput = collections.namedtuple("BasicDecoderOutput", ["rnn_output", "sample_id"])
BeamSearchDecoderOutput = collections.namedtuple("BeamSearchDecoderOutput", ["predicted_ids"])


class AttentionState(collections.namedtuple("AttentionState", ["cell_state", "attention"])):
    def clone(self, **changed):
        return self._replace(**changed)


def tile_batch(tree, multiplier):
    return nest.map_structure(lambda tensor: tf.repeat(tensor, multiplier, axis=0), tree)


class LuongAttention:
    def __init__(self, num_units, memory, memory_sequence_length, scale=False):
        self._mask = tf.sequence_mask(memory_sequence_length, tf.shape(memory)[1], dtype=tf.float32)
        self._values = memory * self._mask[:, :, None]
        with tf.variable_scope("memory_layer"):
            kernel = tf.get_variable("kernel", [memory.shape[-1], num_units])
        self._keys, self._scale = tf.tensordot(self._values, kernel, 1), scale

    def __call__(self, query):
        """Returns the context of a query."""
        score = tf.einsum("bu,btu->bt", query, self._keys)
        if self._scale:
            score *= tf.get_variable("attention_g", [], initializer=tf.ones_initializer())
        weights = tf.nn.softmax(score - 1e9 * (1.0 - self._mask))
        return tf.einsum("bt,btu->bu", weights, self._values)


class AttentionWrapper(Cell):
    def __init__(self, cell, mechanism, attention_layer_size, name="attention"):
        super().__init__()
        self._cell, self._mechanism, self.name = cell, mechanism, name
        self.output_size = attention_layer_size
        self.state_size = AttentionState(cell.state_size, attention_layer_size)

    def call(self, inputs, state):
        output, cell_state = self._cell(tf.concat([inputs, state.attention], 1), state.cell_state)
        both = tf.concat([output, self._mechanism(output)], 1)
        with tf.variable_scope("attention_layer"):
            kernel = tf.get_variable("kernel", [both.shape[-1], self.output_size])
        attention = tf.matmul(both, kernel)
        return attention, AttentionState(cell_state, attention)


TrainingHelper = collections.namedtuple("TrainingHelper", ["inputs", "sequence_length"])


class BasicDecoder:
    """Runs a cell over the inputs of a helper."""

    def __init__(self, cell, helper, initial_state):
        self._cell, self._helper, self._start = cell, helper, initial_state

    def decode(self, scope, maximum_iterations, swap_memory):
        outputs, state = tf.nn.dynamic_rnn(
            self._cell,
            self._helper.inputs,
            sequence_length=self._helper.sequence_length,
            initial_state=self._start,
            swap_memory=swap_memory,
            scope=scope,
        )
        return BasicDecoderOutput(outputs, None), state, self._helper.sequence_length


class BeamSearchDecoder:
    """Keeps the `beam_width` likeliest sentences of each batch entry."""

    def __init__(
        self,
        cell,
        embedding,
        start_tokens,
        end_token,
        initial_state,
        beam_width,
        output_layer,
        length_penalty_weight=0.0,
    ):
        self._cell, self._embedding, self._layer, self._start = cell, embedding, output_layer, initial_state
        self._tokens, self._end, self._beam, self._penalty = start_tokens, end_token, beam_width, length_penalty_weight

    def decode(self, scope, maximum_iterations, swap_memory):
        batch, beam = tf.size(self._tokens), self._beam
        log_probs = tf.tile(tf.constant([[0.0] + [-1e9] * (beam - 1)]), [batch, 1])
        ids = tf.zeros([batch, beam, 0], tf.int32)
        newest = tf.repeat(self._tokens[:, None], beam, axis=1)
        finished, lengths = tf.zeros([batch, beam], tf.bool), tf.zeros([batch, beam], tf.int32)

        def step(time, ids, newest, log_probs, finished, lengths, state):
            inputs = tf.nn.embedding_lookup(self._embedding, tf.reshape(newest, [-1]))
            with tf.variable_scope(scope):
                outputs, state = self._cell(inputs, state)
            logits = self._layer(outputs)
            size = logits.shape[-1]
            each = tf.reshape(tf.nn.log_softmax(logits), [batch, beam, size])
            # A sentence that has ended continues only with its end token, at no cost.
            only_end = tf.one_hot(self._end, size, 0.0, -1e9)
            each = tf.where(tf.tile(finished[:, :, None], [1, 1, size]), tf.zeros_like(each) + only_end, each)
            total = log_probs[:, :, None] + each
            grown = lengths + tf.cast(tf.logical_not(finished), tf.int32)
            divisor = tf.pow((5.0 + tf.cast(grown, tf.float32)) / 6.0, self._penalty)
            scores = tf.reshape(total / divisor[:, :, None], [batch, beam * size])
            _, chosen = tf.nn.top_k(scores, beam)
            parent, newest = chosen // size, chosen % size

            def pick(values):
                return tf.gather(values, parent, batch_dims=1)

            ids = tf.concat([pick(ids), newest[:, :, None]], axis=2)
            log_probs = tf.gather(tf.reshape(total, [batch, beam * size]), chosen, batch_dims=1)
            flat = tf.reshape(parent + beam * tf.range(batch)[:, None], [-1])
            state = nest.map_structure(lambda values: tf.gather(values, flat), state)
            finished = tf.logical_or(pick(finished), tf.equal(newest, self._end))
            return time + 1, ids, newest, log_probs, finished, pick(grown), state

        def goes_on(time, ids, newest, log_probs, finished, lengths, state):
            return tf.logical_and(time < maximum_iterations, tf.logical_not(tf.reduce_all(finished)))

        start = (tf.constant(0), ids, newest, log_probs, finished, lengths, self._start)
        invariants = nest.map_structure(lambda tensor: tensor.shape, start)
        invariants = (invariants[0], tf.TensorShape([None, beam, None]), *invariants[2:])
        _, ids, _, _, _, lengths, state = tf.while_loop(goes_on, step, start, shape_invariants=invariants)
        return BeamSearchDecoderOutput(tf.transpose(ids, [0, 2, 1])), state, lengths


def dynamic_decode(decoder, maximum_iterations=None, swap_memory=False, scope=None):
    return decoder.decode(scope or "decoder", maximum_iterations, swap_memory)
