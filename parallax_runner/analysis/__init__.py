"""Which variables have dense gradients, which have sparse ones, and what belongs to each."""
