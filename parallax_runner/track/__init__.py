"""Records what a run was asked, what it did and how it ended; only the driver imports this."""
