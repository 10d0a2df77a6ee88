"""Kubernetes: how a run writes and submits its job, follows it, and how the pods of the job take part."""
