"""Traces Keras models and training steps that use a `GradientTape`, and imports them into a TensorFlow 1 graph."""
