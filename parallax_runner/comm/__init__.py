"""The names of the routes, and what each route states to every stage. Without TensorFlow."""
