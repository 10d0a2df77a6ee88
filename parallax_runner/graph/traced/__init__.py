"""Traces Keras models and training steps with a `GradientTape`, and imports them as a TensorFlow 1 graph."""
