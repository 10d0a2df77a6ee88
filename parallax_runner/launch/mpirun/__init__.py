"""Open MPI's mpirun: its command line, its parameters, its files, and what it says of its ranks."""
