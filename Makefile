.PHONY: check check-mpi

python = .venv/bin/python

# Format, types, import direction and the tests of one process: no MPI, no GPU.
check:
	scripts/setup --horovod
	$(python) -m ruff format --check .
	$(python) -m ruff check .
	$(python) -m mypy
	$(python) -m pytest tests/single

# The rest: tests that start workers and servers.
check-mpi: check
	$(python) -m pytest tests --ignore tests/single --ignore tests/chaos
