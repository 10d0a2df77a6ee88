"""One module a route: which variables may take it, its bytes, its cost, and why it is taken. No TensorFlow here."""
