"""Open MPI's mpirun: its command line, its parameters, its files, and what its output says about its ranks."""
