"""One module per route: which variables can take the route, its bytes, its cost, and its reason. Without TensorFlow."""
