"""From a command line to a checked, frozen configuration. Imports no TensorFlow."""
