"""The noun that planning makes, `Plan`, and how it is shown. No TensorFlow here."""
