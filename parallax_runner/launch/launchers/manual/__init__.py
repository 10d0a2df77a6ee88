"""Processes that the driver does not start. They stand by for a run, on any host and in any order
(docs/design/0051)."""
