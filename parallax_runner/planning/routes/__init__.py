"""One module per route: which variables may take it, its bytes, its cost, and its reason. No TensorFlow here."""
