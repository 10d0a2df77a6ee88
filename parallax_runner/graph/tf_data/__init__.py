"""A dataset for several workers that wraps a user's `tf.data.Dataset`."""
