"""The process that a person starts: plans, launches, supervises, records."""
