"""`Plan`, the result of planning, and the functions that show a plan. Does not use TensorFlow."""
