"""Measures the constants of the cost model on real ranks and servers, and fits them."""
