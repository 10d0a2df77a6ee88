"""Open MPI's mpirun: its command line, its parameters, its files, and the information about ranks in its output."""
