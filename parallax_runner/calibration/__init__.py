"""Fits the constants of the cost model to samples that real ranks and servers gave, and shows them."""
