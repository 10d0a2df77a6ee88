"""The graph captured from the user's model. Later stages read this graph but never change it."""
