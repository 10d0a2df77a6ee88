"""Paddle's `init`, and the flags of its trainers and pservers."""
