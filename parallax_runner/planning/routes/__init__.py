"""One module per route. It defines which variables can take the route, the bytes that they send, the cost, and the
reason for choosing the route. Without TensorFlow."""
