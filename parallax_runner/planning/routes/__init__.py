"""One module per route. Each module defines which variables can take its route, the number of bytes that they send, the
cost, and the reason for choosing the route. The modules do not import TensorFlow."""
