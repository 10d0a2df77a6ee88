"""What a column of a table means: one module for each kind, with its settings, its features and its served ops."""
