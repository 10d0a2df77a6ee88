"""Trainings on real data in every mode, with one seed: `python -m benchmarks.results`, for docs/results.md."""
