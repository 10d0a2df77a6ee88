"""The stores of a rendezvous, where its processes write their entries: a folder, a Redis server or the driver."""
