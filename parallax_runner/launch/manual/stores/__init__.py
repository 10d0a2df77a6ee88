"""The stores of a rendezvous, to which its processes write their entries: a folder, a Redis server or the driver."""
