"""One module per route. Each module defines which variables can take its route, the number of bytes that the route
sends, its cost, and the reason for choosing the route. The modules do not import TensorFlow."""
