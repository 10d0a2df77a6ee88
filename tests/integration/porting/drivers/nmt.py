"""Translation: lookup tables, bucketed iterators, attention, scopes of GPUs; beam search on the checkpoint at the end."""

import collections
import os

import numpy as np
import parallax
import tensorflow as tf
from parallax_config import FLAGS, build_config

UNK, SOS, EOS = "<unk>", "<s>", "</s>"
WORDS, UNITS, BATCH, BEAM, NUM_GPUS = 30, 16, 8, 3, 1

Batch = collections.namedtuple(
    "Batch", ["initializer", "source", "target_input", "target_output", "source_length", "target_length"]
)


def path_of(name):
    return os.path.join(FLAGS.data_dir, name)


def write_corpus(folder):
    """Writes vocabularies and sentences if there are none: the target is the source in other words, backwards."""
    if tf.gfile.Exists(folder):
        return
    tf.gfile.MakeDirs(folder)
    draw = np.random.RandomState(0)
    for side in ["src", "tgt"]:
        with tf.gfile.GFile(path_of("vocab." + side), "w") as vocabulary:
            vocabulary.write("\n".join([UNK, SOS, EOS] + ["%s%d" % (side, word) for word in range(WORDS)]) + "\n")
    sentences = [draw.randint(0, WORDS, draw.randint(2, 9)) for _ in range(96)]
    for side, order in [("src", 1), ("tgt", -1)]:
        with tf.gfile.GFile(path_of("train." + side), "w") as text:
            for words in sentences:
                text.write(" ".join("%s%d" % (side, word) for word in words[::order]) + "\n")


def make_tables():
    source = tf.contrib.lookup.index_table_from_file(path_of("vocab.src"), default_value=0)
    target = tf.contrib.lookup.index_table_from_file(path_of("vocab.tgt"), default_value=0)
    return source, target


def get_iterator(source_table, target_table):
    """Returns pairs of sentences of similar length, this replica's share of them."""
    eos_of_source = tf.cast(source_table.lookup(tf.constant(EOS)), tf.int32)
    sos = tf.cast(target_table.lookup(tf.constant(SOS)), tf.int32)
    eos = tf.cast(target_table.lookup(tf.constant(EOS)), tf.int32)
    pairs = tf.data.Dataset.zip(
        (tf.data.TextLineDataset(path_of("train.src")), tf.data.TextLineDataset(path_of("train.tgt")))
    )
    pairs = parallax.shard.shard(pairs).shuffle(96, seed=7, reshuffle_each_iteration=True).repeat()
    pairs = pairs.map(lambda source, target: (tf.string_split([source]).values, tf.string_split([target]).values))
    pairs = pairs.filter(lambda source, target: tf.logical_and(tf.size(source) > 0, tf.size(target) > 0))
    pairs = pairs.map(
        lambda source, target: (
            tf.cast(source_table.lookup(source), tf.int32),
            tf.cast(target_table.lookup(target), tf.int32),
        )
    )
    pairs = pairs.map(
        lambda source, target: (
            source,
            tf.concat([[sos], target], 0),
            tf.concat([target, [eos]], 0),
            tf.size(source),
            tf.size(target) + 1,
        )
    )

    def bucket_of(source, target_input, target_output, source_length, target_length):
        return tf.cast(tf.maximum(source_length, target_length) // 5, tf.int64)

    def batch_of(key, window):
        return window.padded_batch(
            BATCH,
            padded_shapes=(
                tf.TensorShape([None]),
                tf.TensorShape([None]),
                tf.TensorShape([None]),
                tf.TensorShape([]),
                tf.TensorShape([]),
            ),
            padding_values=(eos_of_source, eos, eos, 0, 0),
        )

    batches = pairs.apply(tf.contrib.data.group_by_window(bucket_of, batch_of, window_size=BATCH))
    iterator = batches.make_initializable_iterator()
    source, target_input, target_output, source_length, target_length = iterator.get_next()
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return Batch(iterator.initializer, source, target_input, target_output, source_length, target_length)


def make_cell(layers, residual=0):
    cells = []
    for layer in range(layers):
        cell = tf.contrib.rnn.BasicLSTMCell(UNITS, forget_bias=1.0)
        if layer >= layers - residual:
            cell = tf.contrib.rnn.ResidualWrapper(cell)
        cells.append(tf.contrib.rnn.DeviceWrapper(cell, "/gpu:%d" % (layer % NUM_GPUS)))
    return cells[0] if layers == 1 else tf.contrib.rnn.MultiRNNCell(cells)


class Model(object):
    def __init__(self, mode, batch, target_table):
        self.mode, self.batch, self.target_table = mode, batch, target_table
        with tf.variable_scope("dynamic_seq2seq", initializer=tf.random_uniform_initializer(-0.1, 0.1)):
            with tf.variable_scope("embeddings", partitioner=parallax.get_partitioner(FLAGS.partitions)):
                with tf.device("/cpu:0"):
                    self.source_words = tf.get_variable("encoder", [WORDS + 3, UNITS])
                    self.target_words = tf.get_variable("decoder", [WORDS + 3, UNITS])
            with tf.variable_scope("projection"):
                self.projection = tf.layers.Dense(WORDS + 3, use_bias=False, name="output_projection")
            memory, state = self.encode()
            self.decode(memory, state)
        if mode == "train":
            with tf.device("/gpu:0"):
                cross = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch.target_output, logits=self.logits)
                mask = tf.sequence_mask(batch.target_length, tf.shape(batch.target_output)[1], dtype=tf.float32)
                self.batch_size = tf.size(batch.source_length)
                self.loss = tf.reduce_sum(cross * mask) / tf.to_float(self.batch_size)
            self.word_count = tf.reduce_sum(batch.source_length) + tf.reduce_sum(batch.target_length)
            self.predict_count = tf.reduce_sum(batch.target_length)
            self.add_update()

    def encode(self):
        with tf.variable_scope("encoder"):
            inputs = tf.nn.embedding_lookup(self.source_words, self.batch.source)
            both, states = tf.nn.bidirectional_dynamic_rnn(
                make_cell(1), make_cell(1), inputs, sequence_length=self.batch.source_length, dtype=tf.float32
            )
            outputs, state = tf.nn.dynamic_rnn(
                make_cell(1), tf.concat(both, -1), sequence_length=self.batch.source_length, dtype=tf.float32
            )
            return outputs, (states[1], state)

    def decode(self, memory, state):
        lengths, beam = self.batch.source_length, 1
        if self.mode == "infer":
            beam = BEAM
            memory = tf.contrib.seq2seq.tile_batch(memory, multiplier=beam)
            state = tf.contrib.seq2seq.tile_batch(state, multiplier=beam)
            lengths = tf.contrib.seq2seq.tile_batch(lengths, multiplier=beam)
        with tf.variable_scope("decoder") as scope:
            attention = tf.contrib.seq2seq.LuongAttention(UNITS, memory, memory_sequence_length=lengths, scale=True)
            cell = tf.contrib.seq2seq.AttentionWrapper(
                make_cell(2, residual=1), attention, attention_layer_size=UNITS, name="attention"
            )
            cell = tf.contrib.rnn.DeviceWrapper(cell, "/gpu:0")
            start = cell.zero_state(tf.size(lengths), tf.float32).clone(cell_state=state)
            if self.mode == "train":
                inputs = tf.nn.embedding_lookup(self.target_words, self.batch.target_input)
                helper = tf.contrib.seq2seq.TrainingHelper(inputs, self.batch.target_length)
                decoder = tf.contrib.seq2seq.BasicDecoder(cell, helper, start)
                outputs, _, _ = tf.contrib.seq2seq.dynamic_decode(decoder, swap_memory=True, scope=scope)
                self.logits = self.projection(outputs.rnn_output)
            else:
                sos = tf.cast(self.target_table.lookup(tf.constant(SOS)), tf.int32)
                eos = tf.cast(self.target_table.lookup(tf.constant(EOS)), tf.int32)
                decoder = tf.contrib.seq2seq.BeamSearchDecoder(
                    cell=cell,
                    embedding=self.target_words,
                    start_tokens=tf.fill([tf.size(self.batch.source_length)], sos),
                    end_token=eos,
                    initial_state=start,
                    beam_width=beam,
                    output_layer=self.projection,
                    length_penalty_weight=0.6,
                )
                outputs, _, _ = tf.contrib.seq2seq.dynamic_decode(decoder, maximum_iterations=12, scope=scope)
                self.predicted = outputs.predicted_ids

    def add_update(self):
        self.global_step = tf.train.get_or_create_global_step()
        self.learning_rate = tf.cond(
            self.global_step < 4,
            lambda: tf.constant(1.0),
            lambda: tf.train.exponential_decay(1.0, self.global_step - 4, 3, 0.5, staircase=True),
            name="learning_rate_decay_cond",
        )
        variables = tf.trainable_variables()
        gradients = tf.gradients(self.loss, variables, colocate_gradients_with_ops=True)
        clipped, norm = tf.clip_by_global_norm(gradients, 5.0)
        optimizer = tf.train.GradientDescentOptimizer(self.learning_rate)
        self.update = optimizer.apply_gradients(zip(clipped, variables), global_step=self.global_step)
        self.grad_norm = norm
        self.train_summary = tf.summary.merge(
            [
                tf.summary.scalar("lr", self.learning_rate),
                tf.summary.scalar("train_loss", self.loss),
                tf.summary.scalar("grad_norm", norm),
                tf.summary.scalar("clipped_gradient", tf.global_norm(clipped)),
            ]
        )


def train():
    graph = tf.Graph()
    with graph.as_default():
        tables = make_tables()
        model = Model("train", get_iterator(*tables), tables[1])
    sess, num_workers, worker_id, num_replicas = parallax.parallel_run(
        graph, FLAGS.resource_info_file, sync=FLAGS.sync, parallax_config=build_config()
    )
    fetches = {
        "update": model.update,
        "loss": model.loss,
        "predict_count": model.predict_count,
        "word_count": model.word_count,
        "summary": model.train_summary,
        "global_step": model.global_step,
        "batch_size": model.batch_size,
        "grad_norm": model.grad_norm,
        "learning_rate": model.learning_rate,
    }
    for _ in range(FLAGS.max_steps):
        fetched = sess.run(fetches)
        assert len(fetched["predict_count"]) == len(fetched["summary"]) == num_replicas
        values = {value.tag: value.simple_value for value in tf.Summary.FromString(fetched["summary"][0]).value}
        assert sorted(values) == ["clipped_gradient", "grad_norm", "lr", "train_loss"], values
        assert abs(values["clipped_gradient"] - min(fetched["grad_norm"][0], 5.0)) < 1e-3, (values, fetched)
        loss = np.sum(np.multiply(fetched["loss"], fetched["batch_size"])) / np.sum(fetched["predict_count"])
        print("step %d loss %.6f lr %.3f" % (fetched["global_step"][0], loss, fetched["learning_rate"][0]))
    sess.close()
    return worker_id


def infer():
    """Translates two sentences with the newest checkpoint, on one device."""
    graph = tf.Graph()
    with graph.as_default():
        source_table, target_table = make_tables()
        words = tf.contrib.lookup.index_to_string_table_from_file(path_of("vocab.tgt"), default_value=UNK)
        sentences = tf.placeholder(tf.string, [None], name="sentences")
        split = tf.string_split(sentences)
        ids = tf.cast(source_table.lookup(tf.sparse_tensor_to_dense(split, default_value=EOS)), tf.int32)
        lengths = tf.cast(tf.bincount(tf.cast(split.indices[:, 0], tf.int32)), tf.int32)
        model = Model("infer", Batch(None, ids, None, None, lengths, None), target_table)
        translated = words.lookup(tf.cast(model.predicted, tf.int64))
        saver = tf.train.Saver()
    with tf.Session(graph=graph, config=tf.ConfigProto(allow_soft_placement=True)) as sess:
        sess.run(tf.tables_initializer())
        sess.run(graph.get_collection(tf.GraphKeys.TABLE_INITIALIZERS))
        saver.restore(sess, tf.train.latest_checkpoint(FLAGS.ckpt_dir))
        found = sess.run(translated, {sentences: ["src1 src2 src3", "src4 src5"]})
    assert found.shape[0] == 2 and found.shape[2] == BEAM, found.shape
    print("translated: %s" % " ".join(word.decode() for word in found[0, :, 0]))


def main(_):
    write_corpus(FLAGS.data_dir)
    if train() == 0:
        infer()


if __name__ == "__main__":
    tf.app.run()
