"""Where the processes of a rendezvous leave their entries: a folder, or the driver itself."""
