"""Fits the constants of the cost model to samples from real ranks and servers, and shows the constants."""
