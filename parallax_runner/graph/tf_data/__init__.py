"""A user's `tf.data.Dataset` as a data set that several workers read."""
