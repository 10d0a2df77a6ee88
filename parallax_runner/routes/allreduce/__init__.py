"""The allreduce route, for dense gradients and for sparse gradients that are made dense before they are sent."""
