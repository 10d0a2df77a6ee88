"""The route allreduce: dense gradients, and sparse ones that are made dense on the way."""
