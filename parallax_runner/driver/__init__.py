"""The process that the user starts. This process plans, launches, supervises and records a run."""
