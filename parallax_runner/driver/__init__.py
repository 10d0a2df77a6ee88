"""The process that the user starts. It plans, launches, supervises and records a run, and prints the outcome."""
