"""`Plan`, the result of planning, and the functions that show a plan. Without TensorFlow."""
