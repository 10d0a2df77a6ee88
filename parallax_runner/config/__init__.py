"""Turns a command line into a checked, frozen configuration. Does not import TensorFlow."""
