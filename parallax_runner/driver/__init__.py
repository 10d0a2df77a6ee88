"""The process that a person starts: plans, launches, supervises, records, and prints what became of a run."""
