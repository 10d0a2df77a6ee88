"""`Plan`, the result of planning, and how it is shown. No TensorFlow here."""
