"""One module per route. Each module defines which variables can take its route, the bytes that they send, the cost, and the
reason for choosing the route. Without TensorFlow."""
