"""Keras models and train steps with a `GradientTape`: traced eagerly, and imported as a graph of TensorFlow 1."""
