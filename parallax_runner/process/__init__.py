"""What every process does for itself: times its start, masks secrets, imports TensorFlow, ends with a status."""
