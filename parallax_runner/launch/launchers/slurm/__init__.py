"""Slurm: how a run reads its allocation, submits its job, and starts its processes on the job's nodes."""
