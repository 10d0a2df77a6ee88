"""The names of the routes, and the properties of a route that every stage can read. Does not use TensorFlow."""
