"""Models as plain TensorFlow graph builders; they know nothing of distribution."""
